#include "runtime/comm/nccl/collective.h"

#include <fmt/format.h>

#include <cstring>

#include "runtime/device/dtype.h"

namespace lockstep::nccl {

using comm::OpKind;

ncclDataType_t data_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return ncclSum;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::product: return ncclProd;
  }
  return ncclSum;
}

void Collective::prepare(const Lane& lane) {
  input_.prepare(lane, task.input);
  in_ = out_ = input_.data();
  if (!is_in_place()) {
    output_.prepare(lane, task.output);
    out_ = output_.data();
  }
  if (word_count() == 0) return;
  words_on_device_ = lane.runtime.allocate(sizeof(comm::Words), lane.stream);
  words_on_host_ = lane.runtime.allocate_pinned(sizeof(comm::Words), lane.stream.device);
  const comm::Words own = comm::summands(task.record.note, task.record.words);
  std::memcpy(words_on_host_.get(), own.data(), sizeof own);
}

std::size_t Collective::word_count() const {
  const std::size_t fields = task.record.note.fields();
  return fields > 0 || task.record.weighted || task.record.kind == OpKind::barrier ? 1 + fields : 0;
}

void Collective::launch(const Lane& lane) {
  if (ready) lane.runtime.block(lane.stream, ready.get());
  if (comm::is_source(task.record, lane.rank)) input_.bring_in(lane);
  if (words_on_device_) {
    lane.runtime.copy(words_on_device_.get(), words_on_host_.get(), word_count() * sizeof(std::int64_t), lane.stream);
  }
  lane.communicator->group_start();
  try {
    call(lane);
  } catch (...) {
    // A group that was begun would swallow every later call of this thread.
    lane.communicator->api().group_end();
    throw;
  }
  lane.communicator->group_end();
}

// Parts between this rank and each other. Giver, taker: the one rank that gives or takes, or -1 for all.
void Collective::exchange(const Lane& lane, bool gives_parts, bool takes_parts, int giver, int taker) {
  const Api& api = lane.communicator->api();
  const ncclComm_t comm = lane.communicator->get();
  const auto stream = static_cast<cudaStream_t>(lane.stream.handle);
  const ncclDataType_t type = data_type_of(task.record.dtype);
  const std::size_t part = task.count() * task.element_bytes();
  const bool gives = giver < 0 || giver == lane.rank;
  const bool takes = taker < 0 || taker == lane.rank;
  const auto at = [&](std::byte* data, bool in_parts, int r) {
    return in_parts ? data + static_cast<std::size_t>(r) * part : data;
  };
  for (int r = 0; r < lane.size; ++r) {
    const bool to = gives && (taker < 0 || taker == r);
    const bool from = takes && (giver < 0 || giver == r);
    if (r == lane.rank) {
      const std::byte* const own = at(in_, gives_parts, r);
      std::byte* const there = at(out_, takes_parts, r);
      if (to && from && own != there) lane.runtime.copy(there, own, part, lane.stream);
      continue;
    }
    if (to) {
      lane.communicator->call("ncclSend", api.send(at(in_, gives_parts, r), task.count(), type, r, comm, stream));
    }
    if (from) {
      lane.communicator->call("ncclRecv", api.recv(at(out_, takes_parts, r), task.count(), type, r, comm, stream));
    }
  }
}

void Collective::call(const Lane& lane) {
  const Api& api = lane.communicator->api();
  const ncclComm_t comm = lane.communicator->get();
  const auto stream = static_cast<cudaStream_t>(lane.stream.handle);
  const ncclDataType_t type = data_type_of(task.record.dtype);
  const ncclRedOp_t op = operation_of(task.record.op);
  const std::size_t count = task.count();
  const int root = task.record.root;
  const auto take = [&](const char* name, ncclResult_t result) { lane.communicator->call(name, result); };
  if (void* const sums = words_on_device_.get()) {
    take("ncclAllReduce", api.all_reduce(sums, sums, word_count(), ncclInt64, ncclSum, comm, stream));
  }
  if (count == 0) return;
  switch (task.record.kind) {
    case OpKind::barrier:
    case OpKind::allocate: return;
    case OpKind::all_reduce: return take("ncclAllReduce", api.all_reduce(in_, out_, count, type, op, comm, stream));
    case OpKind::broadcast: return take("ncclBroadcast", api.broadcast(in_, out_, count, type, root, comm, stream));
    case OpKind::reduce: return take("ncclReduce", api.reduce(in_, out_, count, type, op, root, comm, stream));
    case OpKind::all_gather: return take("ncclAllGather", api.all_gather(in_, out_, count, type, comm, stream));
    case OpKind::reduce_scatter:
      return take("ncclReduceScatter", api.reduce_scatter(in_, out_, count, type, op, comm, stream));
    case OpKind::gather: return exchange(lane, false, true, -1, root);
    case OpKind::scatter: return exchange(lane, true, false, root, -1);
    case OpKind::all_to_all: return exchange(lane, true, true, -1, -1);
  }
}

void Collective::follow_up(const Lane& lane) {
  const comm::OpRecord& record = task.record;
  const bool has_result = record.kind != OpKind::reduce || record.root == lane.rank;
  const std::int64_t* divisor = record.op == ReduceOp::avg ? lane.world_size : nullptr;
  if (record.weighted) divisor = static_cast<const std::int64_t*>(words_on_device_.get());
  if (divisor != nullptr && has_result && record.count > 0) {
    lane.runtime.divide(BufferView(out_, record.count, record.dtype, lane.stream.device), divisor,
                        task.zero_if_weightless ? OverZero::is_zero : OverZero::stays, lane.stream);
  }
  if (words_on_device_) {
    lane.runtime.copy(words_on_host_.get(), words_on_device_.get(), word_count() * sizeof(std::int64_t), lane.stream);
  }
  (is_in_place() ? input_ : output_).bring_back(lane);
}

std::optional<std::string> Collective::problem() const {
  if (words[0] >= 0) return std::nullopt;
  return comm::describe_too_heavy(
      task.record, sequence, fmt::format("{} of rank {} and those of the others", task.record.words[0], task.rank));
}

bool Collective::is_for_host() const {
  const BufferView& result = is_in_place() ? task.input : task.output;
  return result.device.kind == DeviceKind::cpu && result.bytes() > 0;
}

void Collective::land() {
  if (words_on_host_) {
    comm::Words sums{};
    std::memcpy(sums.data(), words_on_host_.get(), word_count() * sizeof(std::int64_t));
    words = comm::from_sums(task.record.note, task.record.words, sums, task.size);
  }
  (is_in_place() ? input_ : output_).land();
  words_on_device_.reset();
  words_on_host_.reset();
}

}  // namespace lockstep::nccl
