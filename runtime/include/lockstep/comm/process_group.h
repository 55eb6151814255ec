// SPDX-License-Identifier: Apache-2.0
// A ProcessGroup connects N ranks that compute together; this header defines what every backend must do.
//
//   auto group = lockstep::init_process_group();
//   lockstep::Work work = group->all_reduce(std::span(values));  // starts; in place
//   ...
//   work.wait();                                                 // `values` holds the sums
//
// Collective: every rank must start the group's collectives in the same order; the collectives run in this order. A
//   collective returns its Work without waiting, unless the backend can only block. The program may not use a
//   collective's buffers until the collective is done.
// Threads: only one thread at a time may use a group; any thread may call abort().
// Failure: after a group has failed, every call throws the first cause of the failure (PeerLost, Timeout or
//   Mismatch). A call with wrong arguments (a bad root, sizes that don't fit) throws InvalidArgument before the
//   collective starts, and the group stays usable.
// End: the group's destructor tells the other ranks that this rank has left, so a rank that waits for a later
//   collective fails at once. If an exception unwinds the stack, the destructor aborts the group.
// Fork: in a child of fork(), every call of the group throws InvalidArgument, and the destructor of the child's
//   copy of a group from init_process_group() does nothing. A program may start children that call exec at once
//   (system, posix_spawn).
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

// ReductionOptions says what a reduction computes, and which numbers the ranks send along with the data.
struct ReductionOptions {
  ReduceOp op = ReduceOp::sum;
  // The number of samples or loss terms that this rank's buffer stands for, at least 0. The caller has already
  // multiplied the buffer by `weight`. A weight is only valid with ReduceOp::sum. Each rank sends its weight with its
  // buffer, and gets (sum of the buffers) / (sum of the weights), or the sum of the buffers if all weights are 0.
  std::optional<std::int64_t> weight = {};
  // The unit in which weights are counted, at least 1 and equal on all ranks. The caller has multiplied the buffer by
  // weight / unit, so a rank whose weight equals the unit need not multiply. A unit other than 1 is only valid with a
  // weight, in a group on the CPU.
  std::int64_t unit = 1;
  // Whether the result is 0, instead of the sum of the buffers, if all weights are 0. A caller sets zero_if_weightless
  // if the host can't wait for the sum of the weights. `zero_if_weightless` is only valid with a weight, in a group on
  // a device; in a group on the CPU, the caller can read the sum of the weights once the work is done.
  bool zero_if_weightless = false;
  // The address on the group's device to which the collective writes the sum of the weights (Work::total_weight()), so
  // that kernels in streams can read the sum. The program may not use the memory at `total_on_device` until the
  // collective is done. `total_on_device` is only valid with a weight, in a group on a device.
  std::int64_t* total_on_device = nullptr;
  // The integers that each rank sends along with its data; Work::note() returns their combination over the ranks. A
  // note has at most kMostNoteFields fields, and each field has the same NoteOp on all ranks.
  std::vector<NoteField> note = {};
};

// An Arena is memory that the group's backend can reduce without copying. A new Arena's memory is filled with zeros. An
// Arena's memory stays readable and writable while a copy of `owner` lives, even after the group's end. After the
// group's end, no other rank sees the Arena's memory. Once every rank has dropped its last copy of `owner`, the memory
// is freed by the next call of allocate(), before new memory is allocated, or by the end of the group.
struct Arena {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;  // 64-byte aligned, on the group's device
  std::size_t bytes = 0;
};

// The color of a rank that joins none of the groups that split() makes, like MPI_UNDEFINED. Every other negative color
// has the same meaning as kNoColor.
inline constexpr int kNoColor = -1;

struct SubgroupOptions {
  // The new group's name, as messages show it; all ranks of the group must give the same name. If `name` is empty,
  // the group gets a name such as "split 1, color 0" or "group 2", in which the 1 or 2 counts the calls of split()
  // and new_group().
  std::string name = {};
  // The time limit for making the new group; the new group's timeout() returns the same limit. The timeout must be
  // above 0; nullopt means the timeout of the parent group.
  std::optional<std::chrono::nanoseconds> timeout = {};
};

class ProcessGroup;
namespace comm {
class GroupInternals;
struct Subgroup;
}  // namespace comm

// The two groups that split_by_host() makes.
struct HostGroups {
  std::shared_ptr<ProcessGroup> host;  // the ranks of this rank's host
  std::shared_ptr<ProcessGroup> rail;  // the ranks at this rank's place on their hosts
};

class LOCKSTEP_API ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual DeviceId device() const = 0;
  virtual std::string_view backend() const = 0;  // "single", "shm", ...
  // Returns whether all_reduce() sums the ranks' buffers along one fixed binary tree in rank order, such as
  // ((0+1)+(2+3))+4, whatever the buffers and the hosts are. If a node of the binary tree sums n ranks, the node's left
  // child sums the first k of these ranks, where k is the largest power of two below n.
  virtual bool sums_in_rank_order() const { return false; }
  // Returns the time limit of each collective that is waited for without a deadline.
  virtual std::chrono::nanoseconds(timeout)() const = 0;
  // Returns the members of the group, indexed by rank in the group; each member also holds its rank in the job.
  virtual const rendezvous::Roster& roster() const = 0;
  // Returns the name that this group got from split() or new_group(), or an empty name for a group
  // of init_process_group().
  virtual std::string_view name() const { return {}; }
  // Returns a view of the job's store that adds a prefix to each key; only this group uses the prefix.
  virtual store::Store& store() = 0;

  // Allocates an arena of `bytes` bytes. allocate() is collective and blocking: every rank must call allocate() with an
  // equal `bytes`. Throws InvalidArgument if `bytes` is above 2^48, and also throws the exceptions of Work::wait(). If
  // a rank has too little memory, every rank throws BackendUnavailable, with the reasons of all ranks, and the group
  // stays usable.
  virtual Arena allocate(std::size_t bytes) = 0;

  // Reduces in place: every rank's buffer receives the reduction of all ranks' buffers, with equal bits on all ranks.
  virtual Work all_reduce(const BufferView& buffer, const ReductionOptions& options = {}) = 0;
  // Broadcasts in place: every rank's buffer receives the values of root's buffer.
  virtual Work broadcast(const BufferView& buffer, int root) = 0;
  // Reduces in place: only root's buffer receives the reduction of all ranks' buffers; the buffers of the other ranks
  // keep their values.
  virtual Work reduce(const BufferView& buffer, int root, ReduceOp op = ReduceOp::sum) = 0;
  // Gathers all ranks' inputs in rank order into `output`, which holds size() times input.count elements. The gather is
  // in place if `input` is exactly this rank's part of `output`.
  virtual Work all_gather(const ConstBufferView& input, const BufferView& output) = 0;
  // Reduces the parts of `input`, which holds size() times output.count elements: rank r gets the reduction of the r-th
  // parts of all ranks' inputs, bitwise equal to the result of all_reduce(). The reduction is in place if `output` is
  // exactly this rank's part of `input`; the values of the other parts of `input` are unspecified afterwards.
  virtual Work reduce_scatter(const ConstBufferView& input, const BufferView& output,
                              const ReductionOptions& options = {}) = 0;
  // Gathers all ranks' inputs into root's `output`, which holds size() times input.count elements; `output` is ignored
  // on every rank except root.
  virtual Work gather(const ConstBufferView& input, const BufferView& output, int root) = 0;
  // Scatters root's `input`, which holds size() times output.count elements: rank r gets part r. `input` is ignored on
  // every rank except root.
  virtual Work scatter(const ConstBufferView& input, const BufferView& output, int root) = 0;
  // Sends part j of rank i's `input` to part i of rank j's `output`, for all i and j; `input` and `output` consist of
  // size() equal parts.
  virtual Work all_to_all(const ConstBufferView& input, const BufferView& output) = 0;
  virtual Work barrier() = 0;
  // send() and recv() transfer one message between two ranks. Among messages with equal sender, receiver and tag, the
  // n-th send() matches the n-th recv(). `tag` is at least 0. Backend nccl accepts only tag 0, and runs messages and
  // collectives in the order in which the program calls them (comm/nccl/process_group_nccl.h).
  virtual Work send(const ConstBufferView& buffer, int destination, int tag = 0) = 0;
  virtual Work recv(const BufferView& buffer, int source, int tag = 0) = 0;

  // Returns the stream on the group's device in which the program computes the inputs of collectives and reads their
  // results: a collective starts after the work that the stream holds when the collective is called. Before work in the
  // stream may read the result of a collective, the program must call Work::wait_on(), or wait on the host. A new group
  // uses the device's default stream, which is the only stream of the CPU.
  virtual StreamView stream() const { return {device(), nullptr}; }
  // Sets the stream() that the next and later collectives use. The stream must stay valid until all collectives that
  // use the stream are done. Throws InvalidArgument if the stream belongs to another device.
  virtual void set_stream(StreamView stream);

  // Makes new groups like MPI_Comm_split: one group for each color; the ranks of a new group are ordered by
  // (key, rank). The ranks of a new group are numbered from 0, and the new group has its own store, arenas,
  // stream and subgroups.
  //
  // split() is collective over this group, and blocking: all ranks must call split(), new_group(), split_by_host() and
  // the group's collectives in the same order. A rank that joins no new group gets nullptr.
  //
  // Backend: a new group has the backend of this group, with two exceptions. If this group spans several hosts and
  //   the new group lies on one host, the new group uses shared memory (shm). If this group uses Open MPI, new groups
  //   use shared memory on one host, and TCP between hosts.
  // Order: on the CPU, a rank may start collectives of several groups, and wait for them, in any order; on GPUs all
  //   ranks must start the collectives of all groups in the same order.
  // Errors: split() throws InvalidArgument for a timeout of 0 or less. If ranks ask for different groups, or give one
  //   new group different names, every rank throws Mismatch, and this group stays usable. If a new group can't start,
  //   its ranks throw Timeout, PeerLost or BackendUnavailable.
  // Failure of a group: a timeout, a mismatch, an abort() or the early destruction of a group object on one rank makes
  //   only this one group fail. If a process dies or stops answering, or an exception ends a rank, every group that
  //   contains the rank fails, and no further group can be made. If the store is lost, all groups fail. An error
  //   message of a new group begins with the group's name and ranks. Error messages and causes give a rank's number in
  //   the job, not in the new group.
  // End: groups may be destroyed in any order; resources of a destroyed group that another group needs are kept until
  //   the other group is destroyed.
  std::shared_ptr<ProcessGroup> split(int color, int key = 0, const SubgroupOptions& options = {});
  // Makes one group as torch.distributed.new_group does. `ranks` lists the ranks of this group that become ranks 0, 1,
  // ... of the new group; every rank of this group passes an equal list. Throws InvalidArgument if `ranks` is empty,
  // holds a number that is not a rank of this group, or lists a rank twice. In all other respects new_group() works
  // like split().
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks, const SubgroupOptions& options = {});
  // Makes a group of the ranks that share memory with this rank (rendezvous::Member::beside), and a group of the ranks
  // that have the same place on their hosts as this rank on its host. If this rank is the n-th rank of its host, the
  // second group has the n-th rank of every host that has at least n ranks. The two groups, which split() makes, have
  // the names "host NAME" and "rail N"; the first ranks of the hosts form "rail 0".
  HostGroups split_by_host();

  // Advances the collectives that have started, without blocking; correct programs never need to call progress().
  virtual void progress() = 0;
  // Makes the group fail on every rank, with `cause` in the message. Any thread may call abort(); if the group has
  // failed already, abort() does not replace the first cause.
  virtual void abort(const std::string& cause) = 0;

  // Returns the internals of the group, which only lockstep's own code uses.
  virtual comm::GroupInternals& internals() = 0;
  virtual const comm::GroupInternals& internals() const = 0;

 private:
  std::shared_ptr<ProcessGroup> made_of(const std::vector<int>& ranks, const std::string& own_name,
                                        const std::string& key, const SubgroupOptions& options);
};

// Returns the texts of all ranks, of any length, in rank order. The function is collective and blocking; programs call
// all_gather_text() in set-up code, never in a training step.
LOCKSTEP_API std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& text);
// Waits until all ranks know of a failure that every rank is about to throw, or until the group fails.
// barrier_before_throw() is collective and blocking. Without barrier_before_throw(), the first rank that throws would
// destroy its group, and ranks that still wait for the failure's text would report the first rank as the cause.
LOCKSTEP_API void barrier_before_throw(ProcessGroup& group) noexcept;

}  // namespace lockstep
