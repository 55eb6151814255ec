// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/nccl/operations.h"

#include <algorithm>
#include <cstring>

#include "lockstep/device/dtype.h"

namespace lockstep::fake_nccl {
namespace {

const std::byte* at(const void* data, std::size_t bytes) { return static_cast<const std::byte*>(data) + bytes; }
std::byte* at(void* data, std::size_t bytes) { return static_cast<std::byte*>(data) + bytes; }

template <typename T>
T combine(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd: return static_cast<T>(a * b);
    case ncclMin: return std::min(a, b);
    case ncclMax: return std::max(a, b);
    default: return static_cast<T>(a + b);
  }
}
bfloat16 combine(bfloat16 a, bfloat16 b, ncclRedOp_t op) { return to_bfloat16(combine(to_float(a), to_float(b), op)); }
float16 combine(float16 a, float16 b, ncclRedOp_t op) { return to_float16(combine(to_float(a), to_float(b), op)); }

template <typename T>
void reduce_as(const std::vector<const std::byte*>& sources, std::byte* to, std::size_t count, ncclRedOp_t op) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, sources[0] + i * sizeof(T), sizeof(T));
    for (std::size_t r = 1; r < sources.size(); ++r) {
      T next;
      std::memcpy(&next, sources[r] + i * sizeof(T), sizeof(T));
      value = combine(value, next, op);
    }
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64: return DType::f64;
    case ncclBfloat16: return DType::bf16;
    case ncclFloat16: return DType::f16;
    case ncclInt32: return DType::i32;
    case ncclInt64: return DType::i64;
    case ncclUint8: return DType::u8;
    default: return DType::f32;
  }
}

void reduce(const std::vector<const std::byte*>& sources, std::byte* to, std::size_t count, ncclDataType_t type,
            ncclRedOp_t op) {
  switch (dtype_of(type)) {
    case DType::f32: return reduce_as<float>(sources, to, count, op);
    case DType::f64: return reduce_as<double>(sources, to, count, op);
    case DType::bf16: return reduce_as<bfloat16>(sources, to, count, op);
    case DType::f16: return reduce_as<float16>(sources, to, count, op);
    case DType::i32: return reduce_as<std::uint32_t>(sources, to, count, op);  // wraps; the tests' values are positive
    case DType::i64: return reduce_as<std::uint64_t>(sources, to, count, op);
    case DType::u8: return reduce_as<std::uint8_t>(sources, to, count, op);
  }
}

bool reduces(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter; }

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"all_reduce",     "broadcast", "reduce", "all_gather",
                                    "reduce_scatter", "send",      "recv"};
  return kNames[static_cast<int>(kind)];
}

std::size_t size_of(ncclDataType_t type) { return lockstep::size_of(dtype_of(type)); }

std::string Operation::describe() const {
  std::string text = std::string(fake_nccl::name_of(kind)) + " " + std::to_string(count) + " " +
                     std::string(lockstep::name_of(dtype_of(type)));
  constexpr const char* kOperations[] = {"sum", "product", "max", "min", "avg"};  // as NCCL numbers them
  if (reduces(kind)) text += std::string(" ") + kOperations[op];
  if (kind == Kind::broadcast || kind == Kind::reduce) text += " root " + std::to_string(peer);
  if (kind == Kind::send) text += " to " + std::to_string(peer);
  if (kind == Kind::recv) text += " from " + std::to_string(peer);
  return text;
}

std::size_t Operation::bytes_read(int rank, int size) const {
  const std::size_t part = count * size_of(type);
  if (kind == Kind::recv || (kind == Kind::broadcast && rank != peer)) return 0;
  return kind == Kind::reduce_scatter ? part * static_cast<std::size_t>(size) : part;
}

std::size_t Operation::bytes_written(int rank, int size) const {
  const std::size_t part = count * size_of(type);
  if (kind == Kind::send || (kind == Kind::reduce && rank != peer)) return 0;
  return kind == Kind::all_gather ? part * static_cast<std::size_t>(size) : part;
}

bool run_collective(World& world, int rank, const Operation& operation, std::uint64_t& round,
                    const std::atomic<bool>& aborted, std::string& violation) {
  Shared& shared = world.shared();
  const auto size = static_cast<std::size_t>(world.size());
  const std::size_t element = size_of(operation.type);
  const std::size_t parts = operation.kind == Kind::reduce_scatter ? size : 1;
  const std::size_t largest = kSlotBytes / element / parts;
  Slot& own = shared.slots[rank];
  const auto all = [&](std::atomic<std::uint64_t> Slot::*word, std::uint64_t value) {
    return world.wait(
        [&] {
          for (std::size_t r = 0; r < size; ++r) {
            if ((shared.slots[r].*word).load() < value) return false;
          }
          return true;
        },
        aborted);
  };
  for (std::size_t done = 0; done < operation.count;) {
    // Who was aborted in an earlier operation has left it to the others, who may still look at what was called there.
    if (aborted.load()) return false;
    const std::size_t chunk = std::min(largest, operation.count - done);
    ++round;
    if (operation.bytes_read(rank, world.size()) > 0) {
      for (std::size_t p = 0; p < parts; ++p) {
        std::memcpy(own.data + p * chunk * element, at(operation.from, (p * operation.count + done) * element),
                    chunk * element);
      }
    }
    const std::string text = operation.describe();
    std::strncpy(own.operation, text.c_str(), sizeof(own.operation) - 1);
    own.posted.store(round);
    world.notify();
    if (!all(&Slot::posted, round)) return false;
    std::vector<const std::byte*> sources;
    for (std::size_t r = 0; r < size; ++r) {
      if (std::strcmp(shared.slots[r].operation, own.operation) != 0) {
        violation = "rank " + std::to_string(rank) + " calls " + text + ", rank " + std::to_string(r) + " calls " +
                    shared.slots[r].operation;
        return false;
      }
      sources.push_back(shared.slots[r].data);
    }
    const std::size_t bytes = chunk * element;
    std::byte* const to = at(operation.to, done * element);
    switch (operation.kind) {
      case Kind::all_reduce: reduce(sources, to, chunk, operation.type, operation.op); break;
      case Kind::reduce:
        if (rank == operation.peer) reduce(sources, to, chunk, operation.type, operation.op);
        break;
      case Kind::reduce_scatter:
        for (const std::byte*& source : sources) source += static_cast<std::size_t>(rank) * bytes;
        reduce(sources, to, chunk, operation.type, operation.op);
        break;
      case Kind::broadcast: std::memcpy(to, sources[static_cast<std::size_t>(operation.peer)], bytes); break;
      case Kind::all_gather:
        for (std::size_t r = 0; r < size; ++r) std::memcpy(to + r * operation.count * element, sources[r], bytes);
        break;
      case Kind::send:
      case Kind::recv: break;
    }
    own.taken.store(round);
    world.notify();
    if (!all(&Slot::taken, round)) return false;
    done += chunk;
  }
  return true;
}

bool run_messages(World& world, int rank, std::vector<Operation> operations, const std::atomic<bool>& aborted) {
  Shared& shared = world.shared();
  std::vector<std::size_t> done(operations.size());
  for (;;) {
    const std::uint32_t seen = world.tick();
    if (aborted.load()) return false;
    bool moved = false;
    bool all = true;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const Operation& operation = operations[i];
      const std::size_t bytes = operation.count * size_of(operation.type);
      if (done[i] == bytes) {
        // A send has ended once its receiver has all of it: NCCL promises no buffer between them.
        if (operation.kind != Kind::send) continue;
        const Channel& channel = shared.channels[rank][operation.peer];
        all &= channel.posted.load() == channel.taken.load();
        continue;
      }
      all = false;
      // In order per pair: an earlier one to the same peer goes first.
      bool first = true;
      for (std::size_t k = 0; k < i; ++k) {
        const bool same = operations[k].kind == operation.kind && operations[k].peer == operation.peer;
        first &= !same || done[k] == operations[k].count * size_of(operations[k].type);
      }
      if (!first) continue;
      if (operation.kind == Kind::send) {
        Channel& channel = shared.channels[rank][operation.peer];
        if (channel.posted.load() != channel.taken.load()) continue;
        channel.bytes = std::min(kChannelBytes, bytes - done[i]);
        std::memcpy(channel.data, at(operation.from, done[i]), channel.bytes);
        done[i] += channel.bytes;
        channel.posted.fetch_add(1);
      } else {
        Channel& channel = shared.channels[operation.peer][rank];
        if (channel.posted.load() == channel.taken.load()) continue;
        const std::size_t chunk = std::min<std::size_t>(channel.bytes, bytes - done[i]);
        std::memcpy(at(operation.to, done[i]), channel.data, chunk);
        done[i] += chunk;
        channel.taken.fetch_add(1);
      }
      moved = true;
      world.notify();
    }
    if (all) return true;
    if (!moved) world.doze(seen);
  }
}

}  // namespace lockstep::fake_nccl
