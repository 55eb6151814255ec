// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <type_traits>

#include "lockstep/base/error.h"
#include "tests/conformance/memory.h"

namespace lockstep::testing {
namespace {

// Empty, one, odd, beside the record, and more.
constexpr std::int64_t kCounts[] = {0, 1, 7, 64, 257, 5000, 40001};
constexpr std::int64_t kLargest = 40001;
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};

// What the collectives must give, as closed formulas of rank and element.
//
// Rank r gives value(r, i) at element i: small integers from 1 to 4, so that every dtype holds them, and their sums
// over 8 ranks, exactly.
int value(int rank, std::int64_t element) { return 1 + static_cast<int>((rank + element + element / 7) % 4); }

// The reduction of all ranks' values at an element.
double reduced(ReduceOp op, int ranks, std::int64_t element) {
  double result = value(0, element);
  for (int r = 1; r < ranks; ++r) {
    const double next = value(r, element);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: result += next; break;
      case ReduceOp::min: result = std::fmin(result, next); break;
      case ReduceOp::max: result = std::fmax(result, next); break;
      case ReduceOp::product: result *= next; break;
    }
  }
  return op == ReduceOp::avg ? result / ranks : result;
}

// Conversions between what a dtype stores and a number. from_number() rounds as the collectives must: floats to
// nearest, integers towards zero and, for sums and products, modulo their range.
template <typename T>
double to_number(T x) {
  return static_cast<double>(x);
}
double to_number(bfloat16 x) { return to_float(x); }
double to_number(float16 x) { return to_float(x); }

template <typename T>
T from_number(double x) {
  if constexpr (std::is_same_v<T, bfloat16>) return to_bfloat16(static_cast<float>(x));
  if constexpr (std::is_same_v<T, float16>) return to_float16(static_cast<float>(x));
  if constexpr (std::is_same_v<T, std::uint8_t>) return static_cast<T>(static_cast<std::int64_t>(x));
  if constexpr (std::is_arithmetic_v<T>) return static_cast<T>(x);
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Buffers of one check: in the group's arena, of the user's own, or on the device; then the check works on a copy that
// goes there before a collective and comes back behind it.
class Room {
 public:
  Room(ProcessGroup& group, Memory memory, std::size_t bytes) : group_(group) {
    if (memory == Memory::arena) {
      arena_ = group.allocate(bytes);
      data_ = arena_.data;
    }
    if (memory == Memory::device) {
      on_device_ = device_runtime(group.device().kind).allocate(bytes, group.stream());
      data_ = static_cast<std::byte*>(on_device_.get());
    }
    if (data_ != nullptr && group.device().kind != DeviceKind::cpu) there_ = data_;
    if (data_ == nullptr || there_ != nullptr) {
      own_.resize(bytes + 64);
      data_ = own_.data();
    }
  }
  // Memory for the next buffer, away from the one before.
  template <typename T>
  std::span<T> take(std::int64_t count) {
    std::span<T> result(reinterpret_cast<T*>(data_ + used_), static_cast<std::size_t>(count));
    used_ += (result.size_bytes() + 127) / 64 * 64;
    return result;
  }
  // The next buffer is the first again, `shift` bytes from the room's start, and so are those behind it from a multiple
  // of 64 there.
  void reuse(std::size_t shift = 0) { used_ = shift; }
  // As a collective takes it.
  template <typename T>
  BufferView view(std::span<T> buffer) const {
    BufferView result(buffer);
    if (there_ == nullptr) return result;
    result.data = there_ + (reinterpret_cast<std::byte*>(buffer.data()) - data_);
    result.device = group_.device();
    return result;
  }
  void bring() const {
    if (there_ != nullptr) upload(group_.stream(), there_, std::span(data_, used_));
  }
  // On a device nobody waits on the host: the copy back does, in its stream.
  void fetch(std::span<const Work> works) {
    for (const Work& work : works) {
      if (there_ != nullptr) {
        work.wait_on(group_.stream());
      } else {
        work.wait();
      }
    }
    if (there_ != nullptr) download(group_.stream(), std::span(data_, used_), there_);
  }
  // The work is valid until the next run().
  template <typename Start>
  const Work& run(Start start) {
    bring();
    last_ = start();
    fetch(std::span(&last_, 1));
    return last_;
  }

 private:
  ProcessGroup& group_;
  Arena arena_;
  std::shared_ptr<void> on_device_;
  std::byte* there_ = nullptr;  // on the device
  std::vector<std::byte> own_;
  std::byte* data_ = nullptr;
  std::size_t used_ = 0;
  Work last_;
};

// The check of one group and dtype.
template <typename T>
class Check {
 public:
  Check(ProcessGroup& group, Memory memory, std::span<const std::int64_t> counts = kCounts,
        std::span<const ReduceOp> ops = kOps, std::size_t shift = 0)
      : group_(group),
        rank_(group.rank()),
        size_(group.size()),
        counts_(counts),
        ops_(ops),
        shift_(shift * sizeof(T)),
        room_(group, memory,
              (2 * static_cast<std::size_t>(size_) + 2) *
                      static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end())) * sizeof(T) +
                  1024) {}

  void all() {
    for (const std::int64_t count : counts_) {
      for (const ReduceOp op : ops_) {
        all_reduce(op, count);
        reduce(op, count, size_ - 1);
        reduce_scatter(op, count, false);
        reduce_scatter(op, count, true);
      }
      for (const int root : {0, size_ - 1}) {
        broadcast(count, root);
        gather(count, root);
        scatter(count, root);
      }
      all_gather(count, false);
      all_gather(count, true);
      all_to_all(count);
    }
    group_.barrier().wait();
  }

 private:
  std::span<T> filled(std::int64_t count, int of_rank, std::int64_t from = 0) {
    std::span<T> buffer = room_.take<T>(count);
    fill(buffer, of_rank, from);
    return buffer;
  }
  void fill(std::span<T> buffer, int of_rank, std::int64_t from = 0) {
    for (std::size_t i = 0; i < buffer.size(); ++i) {
      buffer[i] = from_number<T>(value(of_rank, from + static_cast<std::int64_t>(i)));
    }
  }
  template <typename Expected>
  void compare(const char* operation, std::span<T> got, Expected expected) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      const T wanted = from_number<T>(expected(static_cast<std::int64_t>(i)));
      if (std::memcmp(&got[i], &wanted, sizeof(T)) == 0) continue;
      throw std::runtime_error(fmt::format("{} of {} x {} on rank {} of {}: element {} is {}, wanted {}", operation,
                                           got.size(), name_of(dtype_of<T>()), rank_, size_, i, to_number(got[i]),
                                           to_number(wanted)));
    }
  }

  void all_reduce(ReduceOp op, std::int64_t count) {
    room_.reuse(shift_);
    auto buffer = filled(count, rank_);
    room_.run([&] { return group_.all_reduce(room_.view(buffer), {.op = op}); });
    compare("all_reduce", buffer, [&](std::int64_t i) { return reduced(op, size_, i); });
  }
  void reduce(ReduceOp op, std::int64_t count, int root) {
    room_.reuse(shift_);
    auto buffer = filled(count, rank_);
    room_.run([&] { return group_.reduce(room_.view(buffer), root, op); });
    compare("reduce", buffer,
            [&](std::int64_t i) -> double { return rank_ == root ? reduced(op, size_, i) : value(rank_, i); });
  }
  void reduce_scatter(ReduceOp op, std::int64_t count, bool in_place) {
    room_.reuse(shift_);
    auto input = filled(count * size_, rank_);
    auto output = in_place ? input.subspan(static_cast<std::size_t>(count * rank_), static_cast<std::size_t>(count))
                           : room_.take<T>(count);
    room_.run([&] { return group_.reduce_scatter(room_.view(input), room_.view(output), {.op = op}); });
    compare("reduce_scatter", output, [&](std::int64_t i) { return reduced(op, size_, count * rank_ + i); });
  }
  void broadcast(std::int64_t count, int root) {
    room_.reuse(shift_);
    auto buffer = filled(count, rank_);
    room_.run([&] { return group_.broadcast(room_.view(buffer), root); });
    compare("broadcast", buffer, [&](std::int64_t i) { return value(root, i); });
  }
  double gathered(std::int64_t count, std::int64_t i) const { return value(static_cast<int>(i / count), i % count); }
  void all_gather(std::int64_t count, bool in_place) {
    room_.reuse(shift_);
    auto output = room_.take<T>(count * size_);
    fill(output, 3, 1);
    auto input = in_place ? output.subspan(static_cast<std::size_t>(count * rank_), static_cast<std::size_t>(count))
                          : room_.take<T>(count);
    fill(input, rank_);
    room_.run([&] { return group_.all_gather(room_.view(input), room_.view(output)); });
    compare("all_gather", output, [&](std::int64_t i) { return gathered(count, i); });
  }
  void gather(std::int64_t count, int root) {
    room_.reuse(shift_);
    auto input = filled(count, rank_);
    auto output = room_.take<T>(rank_ == root ? count * size_ : 0);
    room_.run([&] { return group_.gather(room_.view(input), room_.view(output), root); });
    compare("gather", output, [&](std::int64_t i) { return gathered(count, i); });
  }
  void scatter(std::int64_t count, int root) {
    room_.reuse(shift_);
    auto input = filled(rank_ == root ? count * size_ : 0, root);
    auto output = filled(count, rank_ + 1);
    room_.run([&] { return group_.scatter(room_.view(input), room_.view(output), root); });
    compare("scatter", output, [&](std::int64_t i) { return value(root, count * rank_ + i); });
  }
  void all_to_all(std::int64_t count) {
    room_.reuse(shift_);
    auto input = filled(count * size_, rank_);
    auto output = room_.take<T>(count * size_);
    room_.run([&] { return group_.all_to_all(room_.view(input), room_.view(output)); });
    compare("all_to_all", output,
            [&](std::int64_t i) { return value(static_cast<int>(i / count), count * rank_ + i % count); });
  }

  ProcessGroup& group_;
  int rank_;
  int size_;
  std::span<const std::int64_t> counts_;
  std::span<const ReduceOp> ops_;
  std::size_t shift_;
  Room room_;
};

template <typename T>
void check_weights_of(ProcessGroup& group, Memory memory) {
  const int n = group.size();
  const std::int64_t total = static_cast<std::int64_t>(n) * (n + 1) / 2;
  Room room(group, memory, kLargest * sizeof(T) + 1024);
  for (const std::int64_t count : kCounts) {
    room.reuse();
    auto buffer = room.take<T>(count);
    // Rank r has weight r + 1 and the mean 4: the weighted mean is 4.
    std::fill(buffer.begin(), buffer.end(), from_number<T>(4.0 * (group.rank() + 1)));
    const Work work = room.run([&] { return group.all_reduce(room.view(buffer), {.weight = group.rank() + 1}); });
    work.wait();
    require(work.total_weight() == total, fmt::format("total weight {}, wanted {}", work.total_weight(), total));
    for (const T x : buffer) require(to_number(x) == 4, fmt::format("weighted mean {}, wanted 4", to_number(x)));
    // The same in units of 2.
    if (group.device().kind == DeviceKind::cpu) {
      std::fill(buffer.begin(), buffer.end(), from_number<T>(4.0 * (group.rank() + 1)));
      Work in_units = group.all_reduce(BufferView(buffer), {.weight = 2 * (group.rank() + 1), .unit = 2});
      in_units.wait();
      require(in_units.total_weight() == 2 * total, fmt::format("total weight {} in units", in_units.total_weight()));
      for (const T x : buffer) require(to_number(x) == 4, fmt::format("weighted mean {} in units", to_number(x)));
    }
    // Only the last rank has samples.
    std::fill(buffer.begin(), buffer.end(), from_number<T>(group.rank() == n - 1 ? 6 : 0));
    room.run([&] { return group.all_reduce(room.view(buffer), {.weight = group.rank() == n - 1 ? 3 : 0}); });
    for (const T x : buffer) require(to_number(x) == 2, fmt::format("one-sided mean {}, wanted 2", to_number(x)));
    // Nobody has: the sum stays.
    std::fill(buffer.begin(), buffer.end(), from_number<T>(1));
    const Work none = room.run([&] { return group.all_reduce(room.view(buffer), {.weight = 0}); });
    none.wait();
    require(none.total_weight() == 0, "total of weights that are all 0");
    for (const T x : buffer) require(to_number(x) == n, fmt::format("sum {}, wanted {}", to_number(x), n));
  }
}

// A reduce_scatter and an all_gather, both in place, are an all_reduce: weight, unit and note too, and on the CPU to
// the last bit.
template <typename T>
void check_shards_of(ProcessGroup& group, Memory memory) {
  const bool is_on_cpu = group.device().kind == DeviceKind::cpu;
  const double step = is_on_cpu ? 0.3 : 1;  // NCCL adds up in an order of its own: sums of small integers are exact
  Room room(group, memory, 2 * (static_cast<std::size_t>(group.size()) * kLargest * sizeof(T) + 1024));
  ReductionOptions options{.weight = 2 * group.rank(), .note = {{NoteOp::sum, 7}, {NoteOp::any, group.rank() == 0}}};
  if (is_on_cpu) options.unit = 2;
  for (const std::int64_t count : kCounts) {
    room.reuse();
    const auto whole = room.take<T>(count * group.size());
    const auto shared = room.take<T>(count * group.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      whole[i] = shared[i] = from_number<T>(step * value(group.rank(), static_cast<std::int64_t>(i)));
    }
    const auto own = shared.subspan(static_cast<std::size_t>(count * group.rank()), static_cast<std::size_t>(count));
    const Work all = room.run([&] { return group.all_reduce(room.view(whole), options); });
    const Work part = room.run([&] { return group.reduce_scatter(room.view(shared), room.view(own), options); });
    all.wait();
    part.wait();
    require(part.total_weight() == all.total_weight(), fmt::format("a share's total weight {}", part.total_weight()));
    for (std::size_t i = 0; i < options.note.size(); ++i) {
      require(part.note(i) == all.note(i), fmt::format("field {} of a share's note is {}", i, part.note(i)));
    }
    const auto wanted = whole.subspan(static_cast<std::size_t>(count * group.rank()), static_cast<std::size_t>(count));
    require(std::memcmp(own.data(), wanted.data(), own.size_bytes()) == 0,
            fmt::format("a share of {} x {} is not the all_reduce's", count, name_of(dtype_of<T>())));
    room.run([&] { return group.all_gather(room.view(own), room.view(shared)); });
    require(std::memcmp(shared.data(), whole.data(), whole.size_bytes()) == 0,
            fmt::format("{} x {} in gathered shares are not the all_reduce's", count, name_of(dtype_of<T>())));
  }
}

// `check` with a value of that type.
template <typename Run>
void with_type(DType dtype, Run check) {
  switch (dtype) {
    case DType::f32: return check(float{});
    case DType::f64: return check(double{});
    case DType::bf16: return check(bfloat16{});
    case DType::f16: return check(float16{});
    case DType::i32: return check(std::int32_t{});
    case DType::i64: return check(std::int64_t{});
    case DType::u8: return check(std::uint8_t{});
  }
}

template <typename Call>
void refused(const char* what, Call call) {
  try {
    static_cast<void>(call());
  } catch (const InvalidArgument& error) {
    return require(std::string(error.what()).size() > 20,
                   fmt::format("{}: the message '{}' says too little", what, error.what()));
  }
  throw std::runtime_error(fmt::format("{} was not refused", what));
}

}  // namespace

void check_dtype(ProcessGroup& group, DType dtype, Memory memory) {
  with_type(dtype, [&](auto zero) { Check<decltype(zero)>(group, memory).all(); });
}

void check_counts(ProcessGroup& group, DType dtype, std::span<const std::int64_t> counts, std::size_t shift) {
  constexpr ReduceOp kSumAndAvg[] = {ReduceOp::sum, ReduceOp::avg};
  with_type(dtype, [&](auto zero) { Check<decltype(zero)>(group, Memory::user, counts, kSumAndAvg, shift).all(); });
}

template <typename Run>
void with_each_float(Run check) {
  check(float{});
  check(double{});
  check(bfloat16{});
  check(float16{});
}
void check_weights(ProcessGroup& group, Memory memory) {
  with_each_float([&](auto zero) { check_weights_of<decltype(zero)>(group, memory); });
}
void check_shards(ProcessGroup& group, Memory memory) {
  with_each_float([&](auto zero) { check_shards_of<decltype(zero)>(group, memory); });
}

void check_notes(ProcessGroup& group, Memory memory) {
  const int n = group.size();
  const int rank = group.rank();
  const std::int64_t below = static_cast<std::int64_t>(n) * (n - 1) / 2;
  Room room(group, memory, kLargest * sizeof(float) + 1024);
  for (const std::int64_t count : kCounts) {
    room.reuse();
    auto buffer = room.take<float>(count);
    for (const bool weighted : {false, true}) {
      std::fill(buffer.begin(), buffer.end(), 3.0f);
      // The last rank differs in one field; in another each rank has a value of its own, of which 0 is the mean.
      const std::int64_t of_last = rank == n - 1 ? 1 : 0;
      const std::vector<NoteField> note{{NoteOp::sum, 1000 + rank},
                                        {NoteOp::any, 0},
                                        {NoteOp::any, -of_last},
                                        {NoteOp::equal, std::int64_t{1} << 62},
                                        {NoteOp::equal, of_last},
                                        {NoteOp::equal, 2 * rank - (n - 1)},
                                        {NoteOp::sum, std::int64_t{-1} << 62}};
      ReductionOptions options{.note = note};
      if (weighted) options.weight = rank;
      const Work work = room.run([&] { return group.all_reduce(room.view(buffer), options); });
      work.wait();
      const auto minimum = static_cast<std::int64_t>(static_cast<std::uint64_t>(-n) << 62);
      const std::array<std::int64_t, kMostNoteFields> wanted{1000 * n + below, 0, 1, 1, n == 1, n == 1, minimum};
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        require(work.note(i) == wanted[i],
                fmt::format("field {} of the note is {}, wanted {}", i, work.note(i), wanted[i]));
      }
      require(work.total_weight() == (weighted ? below : 0), fmt::format("total weight {}", work.total_weight()));
      const float result = 3.0f * static_cast<float>(n) / static_cast<float>(weighted && below > 0 ? below : 1);
      for (const float x : buffer) {
        require(std::abs(x - result) <= 1e-6f * result, fmt::format("beside a note: {}, wanted {}", x, result));
      }
    }
  }
}

void check_overlap(ProcessGroup& group, Memory memory) {
  constexpr std::int64_t kSizes[] = {3, 2000, 0, 70000, 512};
  constexpr int kStarted = 150;
  Room room(group, memory, kStarted * (70000 * 4 + 128) / 3);
  std::vector<std::span<float>> buffers;
  std::vector<Work> works;
  for (int k = 0; k < kStarted; ++k) {
    auto buffer = room.take<float>(kSizes[k % std::size(kSizes)]);
    for (std::size_t i = 0; i < buffer.size(); ++i)
      buffer[i] = static_cast<float>(value(group.rank() + k, static_cast<std::int64_t>(i)));
    buffers.push_back(buffer);
  }
  room.bring();
  for (int k = 0; k < kStarted; ++k) {
    const BufferView buffer = room.view(buffers[static_cast<std::size_t>(k)]);
    works.push_back(k % 7 == 6 ? group.broadcast(buffer, k % group.size()) : group.all_reduce(buffer));
  }
  // Waited for in another order than started.
  for (int k = kStarted - 1; k >= 0; k -= 2) works[static_cast<std::size_t>(k)].wait();
  for (const Work& work : works) {
    work.wait();
    require(work.done(), "a work that was waited for is not done");
  }
  room.fetch({});
  for (int k = 0; k < kStarted; ++k) {
    const auto& buffer = buffers[static_cast<std::size_t>(k)];
    for (std::size_t i = 0; i < buffer.size(); ++i) {
      float wanted = 0;
      if (k % 7 == 6) {
        wanted = static_cast<float>(value(k % group.size() + k, static_cast<std::int64_t>(i)));
      } else {
        for (int r = 0; r < group.size(); ++r) wanted += static_cast<float>(value(r + k, static_cast<std::int64_t>(i)));
      }
      if (buffer[i] != wanted) {
        throw std::runtime_error(
            fmt::format("overlapped collective {}: element {} is {}, wanted {}", k, i, buffer[i], wanted));
      }
    }
  }
}

// Between all pairs, itself included, received in another order of tags than sent, and all sent first. On nccl, where
// messages keep the program's order: of each two ranks the lower one sends first, and all go through the pairs in one
// order.
void check_messages(ProcessGroup& group, Memory memory) {
  const int rank = group.rank();
  const int size = group.size();
  const bool is_in_order = group.backend() == "nccl";
  constexpr std::int64_t kSizes[] = {0, 5, kLargest, 100};
  constexpr int kEach = std::size(kSizes);
  Room room(group, memory, static_cast<std::size_t>(size) * 2 * (3 * kLargest * 4 + 1024) + 1024);
  std::vector<std::span<float>> sent;
  std::vector<std::span<float>> received;
  for (int k = 0; k < size * kEach; ++k) {
    sent.push_back(room.take<float>(kSizes[k % kEach]));
    std::fill(sent.back().begin(), sent.back().end(), static_cast<float>(rank * 1000 + k));
    received.push_back(room.take<float>(kSizes[k % kEach]));
  }
  room.bring();
  std::vector<Work> works;
  const auto exchange = [&](int peer, int which, bool sends) {
    const auto at = static_cast<std::size_t>(peer * kEach + which);
    const int tag = is_in_order ? 0 : which;
    works.push_back(sends ? group.send(room.view(sent[at]), peer, tag)
                          : group.recv(room.view(received[at]), peer, tag));
  };
  for (int first = 0; first < size && is_in_order; ++first) {
    for (int second = first + 1; second < size; ++second) {
      if (rank != first && rank != second) continue;
      for (const bool sends : {rank == first, rank != first}) {
        for (int k = 0; k < kEach; ++k) exchange(rank == first ? second : first, k, sends);
      }
    }
  }
  for (const bool sends : {true, false}) {
    for (int peer = 0; peer < size && !is_in_order; ++peer) {
      for (int k = 0; k < kEach; ++k) exchange(peer, sends ? k : kEach - 1 - k, sends);
    }
  }
  room.fetch(works);
  for (int k = 0; k < size * kEach; ++k) {
    const int peer = k / kEach;
    if (is_in_order && peer == rank) continue;
    for (const float x : received[static_cast<std::size_t>(k)]) {
      require(x == static_cast<float>(peer * 1000 + rank * kEach + k % kEach),
              fmt::format("message {} of {} -> {} holds {}", k % kEach, peer, rank, x));
    }
  }
  // Around a ring, which rank 0 begins and ends; more of them than a channel holds.
  constexpr int kMany = 100;
  std::vector<std::int32_t> out(kMany);
  std::vector<std::int32_t> in(kMany, -1);
  std::iota(out.begin(), out.end(), 0);
  works.clear();
  for (std::size_t k = 0; k < kMany && size > 1; ++k) {
    const auto send = [&] { works.push_back(group.send(BufferView(std::span(&out[k], 1)), (rank + 1) % size)); };
    if (rank == 0) send();
    works.push_back(group.recv(BufferView(std::span(&in[k], 1)), (rank + size - 1) % size));
    if (rank != 0) send();
  }
  for (const Work& work : works) work.wait();
  require(size == 1 || in == out, "messages of one tag came out of order");
}

void check_refusals(ProcessGroup& group) {
  const int size = group.size();
  std::vector<float> memory(static_cast<std::size_t>(4 * size + 4));
  const std::span<float> all(memory);
  const BufferView whole(all.first(static_cast<std::size_t>(2 * size)));
  const BufferView part(all.last(2));
  std::vector<std::int32_t> integers(2);
  const BufferView wrong_type{std::span(integers)};
  refused("root -1", [&] { return group.broadcast(part, -1); });
  refused("root size", [&] { return group.reduce(part, size); });
  refused("gather root", [&] { return group.gather(part, whole, size); });
  refused("scatter root", [&] { return group.scatter(whole, part, -2); });
  refused("null memory", [&] { return group.all_reduce(BufferView(nullptr, 3, DType::f32)); });
  refused("negative count", [&] { return group.all_reduce(BufferView(memory.data(), -1, DType::f32)); });
  // Its bytes, and at four ranks its parts, are a small number once they have wrapped around.
  constexpr std::int64_t kAbsurd = (std::int64_t{1} << 62) + 1;
  refused("absurd bytes", [&] { return group.all_reduce(BufferView(memory.data(), kAbsurd, DType::f32)); });
  refused("absurd parts", [&] {
    return group.all_gather(BufferView(memory.data(), kAbsurd, DType::u8), BufferView(&memory[1], size, DType::u8));
  });
  refused("device", [&] { return group.all_reduce(BufferView(memory.data(), 1, DType::f32, {DeviceKind::cuda, 0})); });
  refused("all_gather sizes",
          [&] { return group.all_gather(part, BufferView(all.first(static_cast<std::size_t>(2 * size + 1)))); });
  refused("all_gather dtypes", [&] { return group.all_gather(wrong_type, whole); });
  refused("overlap", [&] {
    return group.all_gather(BufferView(all.subspan(static_cast<std::size_t>(2 * group.rank() + 1), 2)), whole);
  });
  refused("reduce_scatter sizes", [&] { return group.reduce_scatter(BufferView(all.first(1)), part); });
  refused("all_to_all overlap", [&] { return group.all_to_all(whole, whole); });
  refused("weight with max", [&] { return group.all_reduce(part, {.op = ReduceOp::max, .weight = 1}); });
  refused("unit 0", [&] { return group.all_reduce(part, {.weight = 1, .unit = 0}); });
  refused("unit without weight", [&] { return group.all_reduce(part, {.unit = 2}); });
  std::int64_t total = 0;
  refused("total without weight", [&] { return group.all_reduce(part, {.total_on_device = &total}); });
  refused("weight below 0", [&] { return group.all_reduce(part, {.weight = -1}); });
  refused("weight of integers", [&] { return group.all_reduce(wrong_type, {.weight = 1}); });
  const std::vector<NoteField> too_long(kMostNoteFields + 1);
  refused("note too long", [&] { return group.all_reduce(part, {.note = too_long}); });
  const std::vector<NoteField> no_operation{{static_cast<NoteOp>(0)}};
  refused("note without operation", [&] { return group.all_reduce(part, {.note = no_operation}); });
  refused("destination", [&] { return group.send(part, size); });
  refused("source", [&] { return group.recv(part, -1); });
  refused("tag", [&] { return group.send(part, 0, -1); });
  float one = 1;
  group.all_reduce(BufferView(std::span(&one, 1))).wait();
  require(one == static_cast<float>(size), "a refused argument has harmed the group");
}

void check_setup(ProcessGroup& group) {
  const int rank = group.rank();
  require(group.roster().size() == static_cast<std::size_t>(group.size()), "roster and size differ");
  for (const std::size_t length : {std::size_t{0}, std::size_t{5}, std::size_t{100000}}) {
    const auto texts =
        all_gather_text(group, std::string(length + static_cast<std::size_t>(rank), static_cast<char>('a' + rank)));
    for (int r = 0; r < group.size(); ++r) {
      const std::string wanted(length + static_cast<std::size_t>(r), static_cast<char>('a' + r));
      require(texts.at(static_cast<std::size_t>(r)) == wanted, fmt::format("text of rank {}", r));
    }
  }
  // The second arena outlives the first and keeps its bytes.
  Arena first = group.allocate(1000);
  Arena second = group.allocate(1 << 20);
  for (const Arena& arena : {first, second}) {
    require(reinterpret_cast<std::uintptr_t>(arena.data) % 64 == 0, "an arena is not aligned to 64 bytes");
    std::vector<std::byte> bytes(arena.bytes, std::byte{1});
    download(group.stream(), bytes, arena.data);
    require(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }),
            "an arena is not zero");
  }
  std::vector<std::byte> bytes(second.bytes, static_cast<std::byte>(rank + 1));
  upload(group.stream(), second.data, bytes);
  first = {};
  Arena third = group.allocate(0);
  require(third.bytes == 0, "an arena of no bytes");
  group.all_reduce(BufferView(second.data, static_cast<std::int64_t>(second.bytes), DType::u8, group.device())).wait();
  download(group.stream(), bytes, second.data);
  const int wanted = group.size() * (group.size() + 1) / 2;
  require(std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return static_cast<int>(b) == wanted; }),
          "the arena that was kept is not reduced");
}

void check_everything(ProcessGroup& group) {
  check_setup(group);
  check_refusals(group);
  const bool on_device = group.device().kind != DeviceKind::cpu;
  for (const Memory memory : {Memory::user, Memory::arena, Memory::device}) {
    if (memory == Memory::device && !on_device) continue;  // that is the user's
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
      // Where the memory of a device is makes no difference to its arithmetic.
      if (on_device && memory != Memory::arena && dtype != DType::f32) continue;
      check_dtype(group, dtype, memory);
    }
    check_weights(group, memory);
    check_shards(group, memory);
    check_notes(group, memory);
    check_overlap(group, memory);
    check_messages(group, memory);
  }
}

}  // namespace lockstep::testing
