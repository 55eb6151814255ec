// SPDX-License-Identifier: Apache-2.0
// ProcessGroupWire implements ProcessGroup for the backends tcp and mpi, which connect hosts through a Wire.
//
// One communication thread per group moves all data, in the order of the program's calls. An arena is plain memory of
// this rank, or memory that the ranks of its host share. The contract is in comm/process_group.h.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/internal_api.h"
#include "runtime/comm/process_group_base.h"
#include "runtime/comm/wire/engine.h"

namespace lockstep::wire {

class ProcessGroupWire final : public comm::ProcessGroupBase {
 public:
  // Connects all ranks over `wire`. All ranks call create(). `backend` is the name of the backend. Either all ranks
  // pass `host_memory`, or no rank passes `host_memory`.
  static LOCKSTEP_INTERNAL_API std::shared_ptr<ProcessGroup> create(std::string backend, GroupContext context,
                                                                    std::unique_ptr<Wire> wire,
                                                                    const Deadline& deadline,
                                                                    const ThreadMaker& make_thread = start_own_thread,
                                                                    std::unique_ptr<HostMemory> host_memory = {});
  ProcessGroupWire(std::string backend, GroupContext context, std::shared_ptr<WireEngine> engine);
  // Says goodbye to the other ranks. Aborts the group instead of saying goodbye if an exception unwinds the stack, or
  // if a collective of this rank is still under way.
  ~ProcessGroupWire() override;
  ProcessGroupWire(const ProcessGroupWire&) = delete;
  ProcessGroupWire& operator=(const ProcessGroupWire&) = delete;

  std::string_view backend() const override { return backend_; }
  bool sums_in_rank_order() const override { return engine_->sums_in_rank_order(); }
  Arena allocate(std::size_t bytes) override;
  // Only checks that the group has not failed: the communication thread moves data without calls of progress().
  void progress() override {
    require_owner("progress");
    engine_->check();
  }
  void abort(const std::string& cause) override;
  void on_peer_failure(const Cause& cause) override { engine_->on_peer_failure(cause); }
  std::int64_t last_sequence() const override { return static_cast<std::int64_t>(engine_->last()); }

 private:
  Work start(comm::CollectiveArgs args) override;
  Work start_message(const comm::P2pOp& p2p) override;

  const std::string backend_;
  std::shared_ptr<WireEngine> engine_;
};

}  // namespace lockstep::wire
