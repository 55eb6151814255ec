// SPDX-License-Identifier: Apache-2.0
// A ProcessGroup is N ranks that compute together: the contract of every backend.
//
//   auto group = lockstep::init_process_group();
//   lockstep::Work work = group->all_reduce(std::span(values));  // starts; in place
//   ...
//   work.wait();                                                 // `values` holds the sums
//
// - Collective: every rank starts the same collectives in the same order, and they run in that order. A call returns at
//   once with its Work, unless the backend must block. Buffers belong to the collective until it is done.
// - Threads: one thread at a time; any thread may call abort().
// - Failure: after a group has failed, every call throws the same first cause (PeerLost, Timeout, Mismatch).
//   InvalidArgument (a bad root, sizes that don't fit) is thrown before anything starts and fails nothing.
// - End: the destructor tells the other ranks, so a rank that waits for a later collective fails at once; during
//   unwinding it aborts the group instead.
// - Fork: in a child of fork() calls throw InvalidArgument, and destroying the child's copy of a group from
//   init_process_group does nothing. A child that execs (system, posix_spawn) is not affected.
//
// Several groups: docs/GROUPS.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/work.h"
#include "lockstep/device/buffer_view.h"
#include "lockstep/device/stream.h"
#include "lockstep/job/cause.h"
#include "lockstep/rendezvous/roster.h"
#include "lockstep/store/store.h"

namespace lockstep {

enum class ReduceOp : std::uint8_t { sum, avg, min, max, product };
LOCKSTEP_API std::string_view name_of(ReduceOp op);

// What a reduction computes, and which numbers travel with it.
struct ReductionOptions {
  ReduceOp op = ReduceOp::sum;
  // The number of samples or loss terms that this rank's buffer, already multiplied by it, stands for; at least 0. Only
  // with ReduceOp::sum. The weights travel with the data, and every rank gets (sum of buffers) / (sum of weights), or
  // the sum of buffers if all weights are 0.
  std::optional<std::int64_t> weight = {};
  // The unit of weights: buffers were multiplied by weight / unit, so a rank whose weight is one unit multiplies
  // nothing. At least 1, equal on all ranks. Other than 1 only with a weight, in a group on the CPU.
  std::int64_t unit = 1;
  // Whether the result is 0, instead of the sum, if all weights are 0: for callers that can't wait for the sum of
  // weights on the host. Only with a weight, in a group on a device; on the CPU the caller knows the sum once the work
  // is done.
  bool zero_if_weightless = false;
  // A word on the group's device that receives the sum of the weights, like Work::total_weight(): for work in streams,
  // which can't wait for the host. It belongs to the collective as a buffer does. Only with a weight, in a group on a
  // device.
  std::int64_t* total_on_device = nullptr;
  // Integers that travel with the data and are combined over the ranks, see Work::note(). At most kMostNoteFields, with
  // the same operations on all ranks.
  std::vector<NoteField> note = {};
};

// Memory that the group's backend can reduce without copying. Its bytes are zero at first. It stays readable and
// writable while a copy of `owner` lives, which may outlive the group; no other rank sees the memory then. After every
// rank has dropped its last copy, the next allocate() frees the memory before it takes any, or the end of the group
// frees it.
struct Arena {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;  // 64-byte aligned, on the group's device
  std::size_t bytes = 0;
};

// The color of a rank that joins none of split()'s groups, like MPI_UNDEFINED. Every other negative color means the
// same.
inline constexpr int kNoColor = -1;

struct SubgroupOptions {
  // The name of the new group in messages; the same on all its ranks. Empty: "split 1, color 0" or "group 2", by the
  // number of the call.
  std::string name = {};
  // The time limit of the new group's start, and its timeout(). Above 0; nullopt: this group's.
  std::optional<std::chrono::nanoseconds> timeout = {};
};

class ProcessGroup;
namespace comm {
class GroupInternals;
struct Subgroup;
}  // namespace comm

// The two groups that split_by_host() makes.
struct HostGroups {
  std::shared_ptr<ProcessGroup> host;          // the ranks of this rank's host
  std::shared_ptr<ProcessGroup> counterparts;  // the ranks at this rank's place on their hosts
};

class LOCKSTEP_API ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual DeviceId device() const = 0;
  virtual std::string_view backend() const = 0;  // "single", "shm", ...
  // Whether all_reduce sums in one tree over the ranks in their order, whatever the buffers and hosts: the left half of
  // a node has the largest power of two of ranks below the node's number of ranks, as in ((0+1)+(2+3))+4.
  virtual bool sums_in_rank_order() const { return false; }
  // The time limit of each collective whose wait has no deadline of its own.
  virtual std::chrono::nanoseconds(timeout)() const = 0;
  // The members of the group, by rank in the group; each has its number in the job.
  virtual const rendezvous::Roster& roster() const = 0;
  // The name that the parent group gave this group; empty for the group of init_process_group.
  virtual std::string_view name() const { return {}; }
  // The job's store, with a prefix of this group's own.
  virtual store::Store& store() = 0;

  // Collective and blocking: every rank asks for the same number of `bytes`. Throws InvalidArgument for more than 2^48;
  // BackendUnavailable on every rank, with all reasons, if a rank lacks the memory (the group stays usable); and what
  // wait() throws.
  virtual Arena allocate(std::size_t bytes) = 0;

  // In place. Every rank gets the reduction of all ranks' buffers, with the same bits on each.
  virtual Work all_reduce(const BufferView& buffer, const ReductionOptions& options = {}) = 0;
  // In place. Every rank gets root's buffer.
  virtual Work broadcast(const BufferView& buffer, int root) = 0;
  // In place. Only root gets the reduction; the other ranks' buffers keep their values.
  virtual Work reduce(const BufferView& buffer, int root, ReduceOp op = ReduceOp::sum) = 0;
  // `output` holds size() times input.count elements and gets the inputs in rank order. In place if `input` is exactly
  // this rank's part of `output`.
  virtual Work all_gather(const ConstBufferView& input, const BufferView& output) = 0;
  // `input` holds size() times output.count elements; rank r gets the reduction of all ranks' r-th parts, with the bits
  // of all_reduce. In place if `output` is exactly this rank's part of `input`, whose other parts are then unspecified.
  virtual Work reduce_scatter(const ConstBufferView& input, const BufferView& output,
                              const ReductionOptions& options = {}) = 0;
  // Root's `output` holds size() times input.count elements; the other ranks' `output` is ignored.
  virtual Work gather(const ConstBufferView& input, const BufferView& output, int root) = 0;
  // Root's `input` holds size() times output.count elements; the other ranks' `input` is ignored.
  virtual Work scatter(const ConstBufferView& input, const BufferView& output, int root) = 0;
  // `input` and `output` hold size() equal parts; part j of rank i's input becomes part i of rank j's output.
  virtual Work all_to_all(const ConstBufferView& input, const BufferView& output) = 0;
  virtual Work barrier() = 0;
  // Point to point: messages match in order per (sender, receiver, tag). `tag` is at least 0. Backend nccl runs them in
  // the program's order among its collectives, and only with tag 0 (comm/nccl/process_group_nccl.h).
  virtual Work send(const ConstBufferView& buffer, int destination, int tag = 0) = 0;
  virtual Work recv(const BufferView& buffer, int source, int tag = 0) = 0;

  // The stream on the group's device that computes the inputs of collectives and reads their results: a collective
  // starts after the work that is in the stream when it is called. Work::wait_on, or a wait on the host, waits for the
  // result. At first it is the device's default stream. The CPU has no other.
  virtual StreamView stream() const { return {device(), nullptr}; }
  // Sets the stream from the next collective on. It outlives all work that was started with it. InvalidArgument for a
  // stream of another device.
  virtual void set_stream(StreamView stream);

  // Makes new groups as MPI_Comm_split does: one for each color, with its ranks ordered by (key, rank). A new group
  // counts its ranks from 0 and has everything a group has: a store, arenas, a stream, groups of its own.
  //
  // Collective over this group, and blocking: all ranks call split(), new_group() and split_by_host() in the same
  // order. A rank that joins no new group gets nullptr. The calls run among this group's collectives, in order.
  //
  // - Backend: this group's, with two exceptions. A group on one host within a multi-host group uses shared memory
  //   (shm). Groups within an Open MPI group use shared memory on one host, and TCP between hosts.
  // - Order: collectives of several groups may be started and waited for in any order on the CPU; on GPUs in one order
  //   on all ranks.
  // - Throws InvalidArgument for a timeout of 0. Throws Mismatch on every rank, and this group stays usable, if another
  //   rank makes another group, or gives one group another name. The new group's start throws, on its ranks, Timeout,
  //   PeerLost or BackendUnavailable.
  // - Failure of a group: a timeout, a mismatch, an abort() and the end of a rank's group object fail only their own
  //   group. A process that dies, and a rank that fails the job, fail every group that has the rank; no further group
  //   can then be made. The loss of the store fails all groups. A message of a new group begins with its name and
  //   ranks. Ranks, in messages and causes, are numbers in the job.
  // - End: groups may be destroyed in any order; resources that a group needs from another one stay as long as it does.
  std::shared_ptr<ProcessGroup> split(int color, int key = 0, const SubgroupOptions& options = {});
  // Makes one group as torch.distributed.new_group does, with the ranks of this group in `ranks`, in the order of the
  // list, which is the same on every rank. InvalidArgument for an empty list, a number that is not a rank of this
  // group, and a rank that is listed twice; otherwise as split().
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks, const SubgroupOptions& options = {});
  // Makes a group of the ranks that share memory with this one (rendezvous::Member::beside), and a group of the ranks
  // that have its place on their hosts. Makes two calls of split(), named "host NAME" and "counterparts 0".
  HostGroups split_by_host();

  // Drives the started collectives without blocking; never needed for correctness.
  virtual void progress() = 0;
  // Fails the group on every rank with `cause`. Any thread; the first cause stays.
  virtual void abort(const std::string& cause) = 0;

  // For lockstep's own code.
  virtual comm::GroupInternals& internals() = 0;
  virtual const comm::GroupInternals& internals() const = 0;

 private:
  std::shared_ptr<ProcessGroup> made_of(const std::vector<int>& ranks, const std::string& own_name,
                                        const std::string& key, const SubgroupOptions& options);
};

// Collective and blocking, for set-up code, never in a step. Returns every rank's text, of any length, in rank order.
LOCKSTEP_API std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& text);
// Collective and blocking, for ranks that have told each other of a failure and are about to throw it. Returns when all
// ranks have the failure, or when the group fails. A rank that threw earlier would unwind its group, and ranks that
// still wait for the text would blame it.
LOCKSTEP_API void barrier_before_throw(ProcessGroup& group) noexcept;

}  // namespace lockstep
