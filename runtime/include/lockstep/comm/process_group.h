// SPDX-License-Identifier: Apache-2.0
// N ranks that compute together: the contract of every backend.
//
// Collectives are started in the same order by every rank of the group and run in that order. Each call starts one and
// returns at once with its Work, or as soon as the backend can't help blocking; buffers belong to it until it is done.
//
// Threads: one thread at a time, except abort(), which may come from any.
// Failure: sticky. After a group has failed, every call throws the same first cause (PeerLost, Timeout, Mismatch).
//   InvalidArgument (a bad root, sizes that don't fit) is thrown before anything starts and fails nothing.
// End: the destructor says goodbye, so that a rank which waits for a later collective fails at once; during unwinding
//   it aborts instead.
// Fork: a child of fork() has no part in the group: its calls throw InvalidArgument, and the end of its copy of a group
//   from init_process_group says and does nothing. A child that execs (system, posix_spawn) is not concerned.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/cause.h"
#include "lockstep/comm/note.h"
#include "lockstep/comm/work.h"
#include "lockstep/device/buffer_view.h"
#include "lockstep/device/stream.h"
#include "lockstep/rendezvous/roster.h"
#include "lockstep/store/store.h"

namespace lockstep {

enum class ReduceOp : std::uint8_t { sum, avg, min, max, product };
LOCKSTEP_API std::string_view name_of(ReduceOp op);

struct AllReduceOptions {
  ReduceOp op = ReduceOp::sum;
  // With sum only. What this rank's buffer, already multiplied by it, stands for: samples or loss terms, at least 0.
  // The weights travel with the data; the result is (sum of buffers) / (sum of weights) on every rank, and the sum of
  // buffers itself if all weights are 0.
  std::optional<std::int64_t> weight = {};
  // Buffers were multiplied by weight / unit, so that a rank whose weight is one unit multiplies nothing. At least 1,
  // equal on all ranks, and another than 1 only with a weight, and in a group on the CPU.
  std::int64_t unit = 1;
  // If all weights are 0 the result is 0, instead of the sum: for who can't wait to know their sum. Only with a weight,
  // and in a group on a device: on the CPU the caller knows it as soon as the work is done.
  bool zero_if_weightless = false;
  // Integers that ride along, and are combined over the ranks: Work::note(). At most kMostNoteFields, with the same
  // operations on all ranks. Read by the call.
  std::span<const NoteField> note = {};
};

// Memory that the group's backend can reduce without copying. Its bytes are zero at first. It stays readable and
// writable while a copy of `owner` lives, which may outlive the group (nobody else sees it any more then). Once every
// rank has dropped its last copy, the memory is given back at the next allocate(), before that takes any, or with the
// group.
struct Arena {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;  // 64-byte aligned, on the group's device
  std::size_t bytes = 0;
};

class StopLatch;

class LOCKSTEP_API ProcessGroup {
 public:
  ProcessGroup();
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual DeviceId device() const = 0;
  virtual std::string_view backend() const = 0;  // "single", "shm", ...
  // Of each collective that is waited for without a deadline of its own.
  virtual std::chrono::nanoseconds timeout() const = 0;
  // Who is in the group, by rank.
  virtual const rendezvous::Roster& roster() const = 0;
  // The job's store, with a prefix of this group's own.
  virtual store::Store& store() = 0;

  // Collective and blocking: every rank asks for the same `bytes`. Throws InvalidArgument for more than 2^48;
  // BackendUnavailable on every rank where one has no room, with all reasons: the group goes on; and what wait()
  // throws.
  virtual Arena allocate(std::size_t bytes) = 0;

  // In place. Every rank gets the reduction of all ranks' buffers, with the same bits on each.
  virtual Work all_reduce(const BufferView& buffer, const AllReduceOptions& options = {}) = 0;
  // In place. Every rank gets root's buffer.
  virtual Work broadcast(const BufferView& buffer, int root) = 0;
  // In place. Only root gets the reduction; the other buffers keep their values.
  virtual Work reduce(const BufferView& buffer, int root, ReduceOp op = ReduceOp::sum) = 0;
  // output holds size() times input.count elements: the inputs in rank order.
  virtual Work all_gather(const BufferView& input, const BufferView& output) = 0;
  // input holds size() times output.count elements; rank r gets the reduction of everybody's r-th part.
  virtual Work reduce_scatter(const BufferView& input, const BufferView& output, ReduceOp op = ReduceOp::sum) = 0;
  // Root's output holds size() times input.count elements; the other ranks' output is ignored.
  virtual Work gather(const BufferView& input, const BufferView& output, int root) = 0;
  // Root's input holds size() times output.count elements; the other ranks' input is ignored.
  virtual Work scatter(const BufferView& input, const BufferView& output, int root) = 0;
  // Both hold size() equal parts; part j of rank i's input becomes part i of rank j's output.
  virtual Work all_to_all(const BufferView& input, const BufferView& output) = 0;
  virtual Work barrier() = 0;
  // Point to point: matched in order per (sender, receiver, tag). tag is at least 0. Backend nccl runs them in the
  // program's order among its collectives, with tag 0 (comm/nccl/process_group_nccl.h).
  virtual Work send(const BufferView& buffer, int destination, int tag = 0) = 0;
  virtual Work recv(const BufferView& buffer, int source, int tag = 0) = 0;

  // The stream that computes what collectives on the group's device read and what reads their results: a collective
  // starts after what is in it when it is called. Results are waited for by Work::wait_on, or by the host. At first the
  // device's default stream. On the CPU there is no other.
  virtual StreamView stream() const { return {device(), nullptr}; }
  // From the next collective on. The stream outlives all that was started by then. InvalidArgument for one of another
  // device.
  virtual void set_stream(StreamView stream);
  // Whether collectives take buffers that are there. A group on a device may take host memory too: for set-up code, at
  // the price of two copies.
  virtual bool takes(DeviceId where) const { return where == device(); }

  // Gives what has been started a push without blocking; never needed for correctness.
  virtual void progress() = 0;
  // Fails the group on every rank with `cause`. Any thread; the first cause stays.
  virtual void abort(const std::string& cause) = 0;
  // The job's membership says so of a rank, or of the store (rank -1): fails the group with that cause. A backend that
  // sees the same by itself and can say more of it may leave it to its next call. Any thread; the first cause stays.
  virtual void lose(const Cause& cause) { abort(cause.text); }
  // Tells the job's launcher of a failure of this rank's own, with ends_group false, that the other ranks are about to
  // hear of in another way: whatever they make of it is a consequence. Blocks for a moment at most; nothing where there
  // is no membership.
  virtual void file([[maybe_unused]] const Cause& cause) {}
  // Number of the collective that this rank started last, from 1; 0: none, or the backend doesn't count. Any thread.
  virtual std::int64_t last_sequence() const { return 0; }
  // That one's name, such as "all_reduce"; empty: none, or not known. Any thread.
  virtual std::string_view last_collective() const { return {}; }
  // Where in its training this rank is, by the Reducer's word: for messages, the other ranks' too. The step, from 0,
  // and the bucket that it launches or waits for; -1: none.
  virtual void set_step([[maybe_unused]] std::int64_t step, [[maybe_unused]] int bucket = -1) {}
  // -1: not known. Any thread.
  virtual std::int64_t step() const { return -1; }
  virtual int bucket() const { return -1; }

  // For the functions of comm/stop.h: what this rank asks, and what all have agreed on.
  const std::shared_ptr<StopLatch>& stop_latch() const { return stop_latch_; }

 private:
  std::shared_ptr<StopLatch> stop_latch_;
};

// Blocking conveniences over the contract, for set-up code: never in a step.
// Text of any length from every rank, in rank order, on every rank.
LOCKSTEP_API std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& text);
// For ranks that have told each other of a failure and are about to throw it: returns once all have it, or when the
// group fails. A rank that threw earlier would unwind its group, and those who still wait for the text would blame it.
LOCKSTEP_API void await_all_told(ProcessGroup& group) noexcept;

}  // namespace lockstep
