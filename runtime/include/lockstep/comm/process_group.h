// SPDX-License-Identifier: Apache-2.0
// A ProcessGroup is N ranks that compute together; this header is the contract of every backend.
//
//   auto group = lockstep::init_process_group();
//   lockstep::Work work = group->all_reduce(std::span(values));  // starts; in place
//   ...
//   work.wait();                                                 // `values` holds the sums
//
// - Collective: every rank starts the same collectives in the same order, and the collectives run in that order. A
//   call returns its Work at once, unless the backend must block. Buffers belong to the collective until the
//   collective is done.
// - Threads: one thread at a time uses a group; any thread may call abort().
// - Failure: after a group has failed, every call throws the same first cause (PeerLost, Timeout, Mismatch). Calls
//   throw InvalidArgument (a bad root, sizes that don't fit) before anything starts, and the group stays usable.
// - End: the destructor tells the other ranks of the end, so a rank that waits for a later collective fails at once.
//   During unwinding the destructor aborts the group instead.
// - Fork: in a child of fork() calls throw InvalidArgument, and destroying the child's copy of a group from
//   init_process_group does nothing. A child that execs (system, posix_spawn) is not affected.
//
// docs/GROUPS.md describes programs with several groups.
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

// ReductionOptions say what a reduction computes, and which numbers travel with the data.
struct ReductionOptions {
  ReduceOp op = ReduceOp::sum;
  // The number of samples or loss terms that this rank's buffer stands for, at least 0. The buffer is already
  // multiplied by this weight. A weight is only valid with ReduceOp::sum. The weights travel with the data, and every
  // rank gets (sum of buffers) / (sum of weights), or the sum of buffers if all weights are 0.
  std::optional<std::int64_t> weight = {};
  // The unit of weights, at least 1, equal on all ranks: buffers were multiplied by weight / unit, so a rank whose
  // weight is one unit multiplies nothing. A unit other than 1 is only valid with a weight, in a group on the CPU.
  std::int64_t unit = 1;
  // Whether the result is 0, instead of the sum, if all weights are 0: for callers that can't wait on the host for the
  // sum of weights. Only valid with a weight, in a group on a device; on the CPU the caller knows the sum of weights
  // once the work is done.
  bool zero_if_weightless = false;
  // The word on the group's device that receives the sum of the weights, like Work::total_weight(), for work in
  // streams, which can't wait for the host. The word belongs to the collective as a buffer does. Only valid with a
  // weight, in a group on a device.
  std::int64_t* total_on_device = nullptr;
  // The integers that travel with the data and are combined over the ranks, see Work::note(). A note has at most
  // kMostNoteFields fields, with the same operations on all ranks.
  std::vector<NoteField> note = {};
};

// Arena is memory that the group's backend can reduce without copying. The bytes are zero at first. The memory stays
// readable and writable while a copy of `owner` lives, which may outlive the group; no other rank sees the memory after
// the group's end. After every rank has dropped its last copy of `owner`, the next allocate() frees the memory before
// it takes new memory, or the end of the group frees the memory.
struct Arena {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;  // 64-byte aligned, on the group's device
  std::size_t bytes = 0;
};

// The color of a rank that joins none of split()'s groups, like MPI_UNDEFINED. Every other negative color means
// the same.
inline constexpr int kNoColor = -1;

struct SubgroupOptions {
  // The name of the new group in messages, the same on all its ranks. If empty, the name is "split 1, color 0" or
  // "group 2", by the number of the call.
  std::string name = {};
  // The time limit of the new group's start, and the new group's timeout(). The limit is above 0; nullopt means the
  // timeout of this group.
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
  // Returns whether all_reduce sums in one tree over the ranks in their order, whatever the buffers and hosts. The left
  // half of a tree node has the largest power of two of ranks below the node's number of ranks, as in ((0+1)+(2+3))+4.
  virtual bool sums_in_rank_order() const { return false; }
  // Returns the time limit of each collective whose wait has no deadline.
  virtual std::chrono::nanoseconds(timeout)() const = 0;
  // Returns the members of the group, by rank in the group; each member has its number in the job.
  virtual const rendezvous::Roster& roster() const = 0;
  // Returns the name that the parent group gave this group; empty for the group of init_process_group.
  virtual std::string_view name() const { return {}; }
  // Returns the job's store, with a key prefix that only this group uses.
  virtual store::Store& store() = 0;

  // Allocates an arena of `bytes` bytes. The call is collective and blocking: every rank asks for the same number.
  // Throws InvalidArgument for more than 2^48 bytes, and what wait() throws. If a rank lacks the memory, every rank
  // throws BackendUnavailable, with all ranks' reasons, and the group stays usable.
  virtual Arena allocate(std::size_t bytes) = 0;

  // Reduces in place: every rank gets the reduction of all ranks' buffers, with the same bits on each rank.
  virtual Work all_reduce(const BufferView& buffer, const ReductionOptions& options = {}) = 0;
  // Broadcasts in place: every rank gets root's buffer.
  virtual Work broadcast(const BufferView& buffer, int root) = 0;
  // Reduces in place: only root gets the reduction; the other ranks' buffers keep their values.
  virtual Work reduce(const BufferView& buffer, int root, ReduceOp op = ReduceOp::sum) = 0;
  // Gathers the inputs in rank order into `output`, which holds size() times input.count elements. The call works in
  // place if `input` is exactly this rank's part of `output`.
  virtual Work all_gather(const ConstBufferView& input, const BufferView& output) = 0;
  // Reduces the parts of `input`, which holds size() times output.count elements: rank r gets the reduction of the r-th
  // parts of all ranks, with the bits of all_reduce. The call works in place if `output` is exactly this rank's part of
  // `input`; the other parts of `input` are then unspecified.
  virtual Work reduce_scatter(const ConstBufferView& input, const BufferView& output,
                              const ReductionOptions& options = {}) = 0;
  // Gathers the inputs into root's `output`, which holds size() times input.count elements; the other ranks' `output`
  // is ignored.
  virtual Work gather(const ConstBufferView& input, const BufferView& output, int root) = 0;
  // Scatters root's `input`, which holds size() times output.count elements; the other ranks' `input` is ignored.
  virtual Work scatter(const ConstBufferView& input, const BufferView& output, int root) = 0;
  // Exchanges parts: `input` and `output` hold size() equal parts, and part j of rank i's input becomes part i of rank
  // j's output.
  virtual Work all_to_all(const ConstBufferView& input, const BufferView& output) = 0;
  virtual Work barrier() = 0;
  // Sends or receives one message between two ranks. Messages match in order per (sender, receiver, tag).
  // `tag` is at least 0. Backend nccl runs messages in the program's order among its collectives, and only
  // with tag 0 (comm/nccl/process_group_nccl.h).
  virtual Work send(const ConstBufferView& buffer, int destination, int tag = 0) = 0;
  virtual Work recv(const BufferView& buffer, int source, int tag = 0) = 0;

  // Returns the stream on the group's device that computes the inputs of collectives and reads their results: a
  // collective starts after the work that is in the stream at the call. Work::wait_on, or a wait on the host, waits for
  // the result. The first stream is the device's default stream. The CPU has no other stream.
  virtual StreamView stream() const { return {device(), nullptr}; }
  // Sets the stream from the next collective on. The stream outlives all work that was started with it. Throws
  // InvalidArgument for a stream of another device.
  virtual void set_stream(StreamView stream);

  // Makes new groups as MPI_Comm_split does: one group for each color, with the color's ranks ordered by (key, rank). A
  // new group counts its ranks from 0 and has everything that a group has: a store, arenas, a stream, subgroups.
  //
  // The call is collective over this group, and blocking: all ranks call split(), new_group() and split_by_host()
  // in the same order. A rank that joins no new group gets nullptr. The calls run among this group's collectives,
  // in order.
  //
  // - Backend: a new group has this group's backend, with two exceptions. A group on one host within a multi-host group
  //   uses shared memory (shm). Groups within an Open MPI group use shared memory on one host, and TCP between hosts.
  // - Order: on the CPU collectives of several groups may be started and waited for in any order; on GPUs every rank
  //   starts them in one order.
  // - Throws InvalidArgument for a timeout of 0. If ranks make different groups, or give one group different names,
  //   every rank throws Mismatch, and this group stays usable. The new group's start throws Timeout, PeerLost or
  //   BackendUnavailable on the new group's ranks.
  // - Failure of a group: a timeout, a mismatch, an abort() and the end of a rank's group object fail only their own
  //   group. A process that dies, and a rank that fails the job, fail every group that has the rank; no further group
  //   can then be made. The loss of the store fails all groups. A message of a new group begins with the group's name
  //   and ranks. Ranks in messages and causes are numbers in the job.
  // - End: groups may be destroyed in any order; a group's resources stay as long as another group needs them.
  std::shared_ptr<ProcessGroup> split(int color, int key = 0, const SubgroupOptions& options = {});
  // Makes one group as torch.distributed.new_group does, with the ranks of this group in `ranks`, in the order of the
  // list, which is the same on every rank. Throws InvalidArgument for an empty list, a number that is not a rank of
  // this group, and a rank that is listed twice; otherwise the call works like split().
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks, const SubgroupOptions& options = {});
  // Makes a group of the ranks that share memory with this rank (rendezvous::Member::beside), and a group of the ranks
  // that have this rank's place on their hosts. The call makes two calls of split(), named "host NAME" and
  // "counterparts 0".
  HostGroups split_by_host();

  // Drives the started collectives without blocking; correct programs never need the call.
  virtual void progress() = 0;
  // Fails the group on every rank with `cause`. Any thread may call abort(); the first cause stays.
  virtual void abort(const std::string& cause) = 0;

  // Returns the group's internals, for lockstep's own code.
  virtual comm::GroupInternals& internals() = 0;
  virtual const comm::GroupInternals& internals() const = 0;

 private:
  std::shared_ptr<ProcessGroup> made_of(const std::vector<int>& ranks, const std::string& own_name,
                                        const std::string& key, const SubgroupOptions& options);
};

// Returns every rank's text, of any length, in rank order. The call is collective and blocking, for set-up code, never
// in a step.
LOCKSTEP_API std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& text);
// Returns when all ranks have a failure that the ranks have told each other and are about to throw, or when the group
// fails. The call is collective and blocking. A rank that threw earlier would unwind its group, and ranks that still
// wait for the failure's text would blame that rank.
LOCKSTEP_API void barrier_before_throw(ProcessGroup& group) noexcept;

}  // namespace lockstep
