// SPDX-License-Identifier: Apache-2.0
// A process group whose backend takes each collective as CollectiveArgs: arguments are checked and completed here, once
// for all such backends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "lockstep/base/owner_process.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/unwind_guard.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/op_record.h"
#include "runtime/comm/transfer.h"

namespace lockstep::comm {

class LOCKSTEP_INTERNAL_API ProcessGroupBase : public ProcessGroup, public GroupInternals {
 public:
  explicit ProcessGroupBase(GroupContext context) : context_(std::move(context)) {}

  int rank() const override { return context_.identity.rank; }
  int size() const override { return static_cast<int>(context_.roster.size()); }
  DeviceId device() const override { return context_.device; }
  std::chrono::nanoseconds timeout() const override { return context_.timeout; }
  const rendezvous::Roster& roster() const override { return context_.roster; }
  std::string_view name() const override { return context_.roster.front().group; }
  store::Store& store() override { return *context_.store; }
  GroupInternals& internals() override { return *this; }
  const GroupInternals& internals() const override { return *this; }
  bool takes(DeviceId where) const override { return where == device(); }
  void on_peer_failure(const Cause& cause) override { abort(cause.text); }
  void report_failure(const Cause& cause) override {
    if (context_.on_throw) context_.on_throw(cause);
  }

  Work all_reduce(const BufferView& buffer, const ReductionOptions& options) override;
  Work broadcast(const BufferView& buffer, int root) override;
  Work reduce(const BufferView& buffer, int root, ReduceOp op) override;
  Work all_gather(const ConstBufferView& input, const BufferView& output) override;
  Work reduce_scatter(const ConstBufferView& input, const BufferView& output, const ReductionOptions& options) override;
  Work gather(const ConstBufferView& input, const BufferView& output, int root) override;
  Work scatter(const ConstBufferView& input, const BufferView& output, int root) override;
  Work all_to_all(const ConstBufferView& input, const BufferView& output) override;
  Work barrier() override;
  Work send(const ConstBufferView& buffer, int destination, int tag) override;
  Work recv(const BufferView& buffer, int source, int tag) override;
  std::string_view last_collective() const override;
  void set_step(std::int64_t step, int bucket) override {
    step_.store(step, std::memory_order_relaxed);
    bucket_.store(bucket, std::memory_order_relaxed);
  }
  std::int64_t step() const override { return step_.load(std::memory_order_relaxed); }
  int bucket() const override { return bucket_.load(std::memory_order_relaxed); }
  std::shared_ptr<ProcessGroup> make_subgroup(const Subgroup& subgroup) override;

 protected:
  const GroupContext& context() const { return context_; }
  // For the destructor of a group: ends its engine in order, or by a failure of this rank if an exception unwinds it.
  template <typename Engine>
  void close(Engine& engine) const {
    unwind_guard_.is_unwinding() ? engine.close_unwinding() : engine.close();
  }
  // InvalidArgument in a child of fork().
  void require_owner(std::string_view operation) const { owner_.require(operation); }
  // Starts a collective; a message. The arguments have been checked.
  virtual Work start(CollectiveArgs args) = 0;
  virtual Work start_message(const P2pOp& p2p) = 0;

  // With this rank's place filled in, for start() to follow: last_collective() is its name from here on. `count`:
  // elements of one part.
  CollectiveArgs args_of(OpKind kind, const ConstBufferView& input, const BufferView& output, std::int64_t count);
  // The size of an arena is one that a machine could have. InvalidArgument.
  static void check_arena_bytes(std::size_t bytes);

 private:
  // Starts a reduction whose result is `output`, once the options have been checked.
  Work start_reduction(OpKind kind, const ConstBufferView& input, const BufferView& output,
                       const ReductionOptions& options);
  Work message(const P2pOp& p2p);

  // The position that the job's membership tells the other ranks, from a thread of its own.
  std::atomic<OpKind> last_kind_{OpKind::barrier};
  std::atomic<std::int64_t> step_{-1};
  std::atomic<int> bucket_{-1};
  const GroupContext context_;
  const OwnerProcess owner_;
  const UnwindGuard unwind_guard_;
};

}  // namespace lockstep::comm
