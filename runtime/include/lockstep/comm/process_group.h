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

// What a reduction computes, and what rides along.
struct ReductionOptions {
  ReduceOp op = ReduceOp::sum;
  // With sum only. The samples or loss terms that this rank's buffer, already multiplied by it, stands for; at least 0.
  // The weights travel with the data; the result is (sum of buffers) / (sum of weights) on every rank, and the sum of
  // buffers itself if all weights are 0.
  std::optional<std::int64_t> weight = {};
  // Buffers were multiplied by weight / unit, so that a rank whose weight is one unit multiplies nothing. At least 1,
  // equal on all ranks, and another than 1 only with a weight, and in a group on the CPU.
  std::int64_t unit = 1;
  // If all weights are 0 the result is 0, instead of the sum: for callers that cannot wait for the sum on the host.
  // Only with a weight, and in a group on a device: on the CPU the caller knows it as soon as the work is done.
  bool zero_if_weightless = false;
  // A word of the group's device that gets the sum of the weights, as Work::total_weight(): for work in streams, which
  // cannot wait for the host. Belongs to the collective as a buffer does. As zero_if_weightless, only with a weight,
  // and in a group on a device.
  std::int64_t* total_on_device = nullptr;
  // Integers that ride along, and are combined over the ranks: Work::note(). At most kMostNoteFields, with the same
  // operations on all ranks.
  std::vector<NoteField> note = {};
};

// Memory that the group's backend can reduce without copying. Its bytes are zero at first. It stays readable and
// writable while a copy of `owner` lives, which may outlive the group (no other rank sees the memory then). Once every
// rank has dropped its last copy, the memory is given back at the next allocate(), before that takes any, or with the
// group.
struct Arena {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;  // 64-byte aligned, on the group's device
  std::size_t bytes = 0;
};

// The color of a rank that is to be in none of the groups of split(), as MPI_UNDEFINED; so is every other below 0.
inline constexpr int kNoColor = -1;

struct SubgroupOptions {
  // For messages; the same on all ranks of the new group. Empty: "split 1, color 0" or "group 2", by the number of the
  // call.
  std::string name = {};
  // Time limit of the new group's start, and its timeout(). Above 0; nullopt: this group's.
  std::optional<std::chrono::nanoseconds> timeout = {};
};

class ProcessGroup;
namespace comm {
class GroupInternals;
struct Subgroup;
}  // namespace comm

// The groups that split_by_host() makes.
struct HostGroups {
  std::shared_ptr<ProcessGroup> host;          // the ranks of this rank's host
  std::shared_ptr<ProcessGroup> counterparts;  // the ranks that have this one's place on their hosts
};

class LOCKSTEP_API ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual DeviceId device() const = 0;
  virtual std::string_view backend() const = 0;  // "single", "shm", ...
  // Whether all_reduce adds up in one tree over the ranks in their order, whatever the buffers and hosts: the left half
  // of a node has the largest power of two of ranks below their number, as in ((0+1)+(2+3))+4.
  virtual bool sums_in_rank_order() const { return false; }
  // Time limit of each collective that is waited for without a deadline of its own.
  virtual std::chrono::nanoseconds(timeout)() const = 0;
  // The members of the group, by rank; each under the number that it has in the job.
  virtual const rendezvous::Roster& roster() const = 0;
  // The name that another group gave this one; empty for the group of init_process_group.
  virtual std::string_view name() const { return {}; }
  // The job's store, with a prefix of this group's own.
  virtual store::Store& store() = 0;

  // Collective and blocking: every rank asks for the same `bytes`. Throws InvalidArgument for more than 2^48;
  // BackendUnavailable on every rank, with all reasons, if one lacks the memory: the group stays usable; and the
  // exceptions of wait().
  virtual Arena allocate(std::size_t bytes) = 0;

  // In place. Every rank gets the reduction of all ranks' buffers, with the same bits on each.
  virtual Work all_reduce(const BufferView& buffer, const ReductionOptions& options = {}) = 0;
  // In place. Every rank gets root's buffer.
  virtual Work broadcast(const BufferView& buffer, int root) = 0;
  // In place. Only root gets the reduction; the other buffers keep their values.
  virtual Work reduce(const BufferView& buffer, int root, ReduceOp op = ReduceOp::sum) = 0;
  // output holds size() times input.count elements: the inputs in rank order. In place if input is exactly this rank's
  // part of output.
  virtual Work all_gather(const ConstBufferView& input, const BufferView& output) = 0;
  // input holds size() times output.count elements; rank r gets the reduction of everybody's r-th part, with the bits
  // that all_reduce gives it. In place if output is exactly this rank's part of input, whose other parts are
  // unspecified then.
  virtual Work reduce_scatter(const ConstBufferView& input, const BufferView& output,
                              const ReductionOptions& options = {}) = 0;
  // Root's output holds size() times input.count elements; the other ranks' output is ignored.
  virtual Work gather(const ConstBufferView& input, const BufferView& output, int root) = 0;
  // Root's input holds size() times output.count elements; the other ranks' input is ignored.
  virtual Work scatter(const ConstBufferView& input, const BufferView& output, int root) = 0;
  // Input and output hold size() equal parts; part j of rank i's input becomes part i of rank j's output.
  virtual Work all_to_all(const ConstBufferView& input, const BufferView& output) = 0;
  virtual Work barrier() = 0;
  // Point to point: matched in order per (sender, receiver, tag). tag is at least 0. Backend nccl runs them in the
  // program's order among its collectives, with tag 0 (comm/nccl/process_group_nccl.h).
  virtual Work send(const ConstBufferView& buffer, int destination, int tag = 0) = 0;
  virtual Work recv(const BufferView& buffer, int source, int tag = 0) = 0;

  // The stream that computes the inputs of collectives on the group's device and reads their results: a collective
  // starts after the work that is in the stream when it is called. Results are waited for by Work::wait_on, or by the
  // host. At first it is the device's default stream. The CPU has no other.
  virtual StreamView stream() const { return {device(), nullptr}; }
  // From the next collective on. The stream outlives all that was started by then. InvalidArgument for one of another
  // device.
  virtual void set_stream(StreamView stream);

  // Groups of some of this one's ranks, beside it. Each of these calls is collective over this group and blocks: all
  // ranks make the same calls in the same order, also those that come into no new group and get nullptr. They run among
  // this group's collectives, in order.
  //
  // A new group counts its ranks from 0 and has everything a group has: a store, arenas, a stream, groups of its own.
  // It has this one's backend; but a group on a single host within a multi-host group uses shared memory (shm), and so
  // do groups within an Open MPI group, which use TCP between hosts. Collectives of several groups may be started and
  // waited for in any order on the CPU; on GPUs in one order on all ranks.
  // Failure: a timeout, a mismatch, an abort() and a goodbye end their own group and no other; a process that dies, and
  //   a rank that fails the job, end every group that has the rank; the store's loss ends all. A message of a new group
  //   begins with its name and ranks. Ranks, in messages and causes, are the job's. Once a rank of the job is lost no
  //   further group can be made.
  // End: in any order; resources that a group needs from another one stay for as long as it does.
  //
  // MPI_Comm_split: a group for each color, of its ranks by (key, rank). InvalidArgument: a timeout of 0. Mismatch on
  // every rank, and this group stays usable: another rank makes another group, or gives one group another name. The new
  // group's start throws, on its ranks, Timeout, PeerLost or BackendUnavailable.
  std::shared_ptr<ProcessGroup> split(int color, int key = 0, const SubgroupOptions& options = {});
  // torch.distributed.new_group: the ranks of this group that are listed, in the order of the list, which is the same
  // on every rank. InvalidArgument for an empty list, for a number that is not a rank of this group, and a rank that is
  // there twice; else as split().
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks, const SubgroupOptions& options = {});
  // Splits by the roster: into the ranks that share memory (rendezvous::Member::beside), and into the ranks that have
  // one place on their hosts. Makes two calls of split(), named "host NAME" and "counterparts 0".
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

// Blocking conveniences over the contract, for set-up code: never in a step.
// Text of any length from every rank, in rank order, on every rank.
LOCKSTEP_API std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& text);
// For ranks that have told each other of a failure and are about to throw it: returns once all have it, or when the
// group fails. A rank that threw earlier would unwind its group, and ranks that still wait for the text would blame it.
LOCKSTEP_API void barrier_before_throw(ProcessGroup& group) noexcept;

}  // namespace lockstep
