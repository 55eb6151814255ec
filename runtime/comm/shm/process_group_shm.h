// SPDX-License-Identifier: Apache-2.0
// The process group of one host: collectives over shared memory.
//
// Buffers inside an arena of allocate() are read and written in place by all ranks; other memory passes through a
// window that stays in cache; up to kInlineBytes per rank travel beside the operation's record. The caller makes all
// progress: there is no thread. Contract: comm/process_group.h.
#pragma once

#include "runtime/comm/process_group_base.h"
#include "runtime/comm/shm/bootstrap.h"
#include "runtime/comm/shm/engine.h"

namespace lockstep::shm {

class ProcessGroupShm final : public comm::ProcessGroupBase {
 public:
  ProcessGroupShm(GroupContext context, SharedSetup setup);
  // Says goodbye; aborts during unwinding, and if a collective of this rank is still under way.
  ~ProcessGroupShm() override;
  ProcessGroupShm(const ProcessGroupShm&) = delete;
  ProcessGroupShm& operator=(const ProcessGroupShm&) = delete;

  std::string_view backend() const override { return "shm"; }
  bool sums_in_rank_order() const override { return true; }
  Arena allocate(std::size_t bytes) override;
  void progress() override {
    require_owner("progress");
    engine_->progress();
  }
  void abort(const std::string& cause) override;
  void on_peer_failure(const Cause& cause) override { engine_->session().on_peer_failure(cause); }
  std::int64_t last_sequence() const override;

  // For who moves data in the group's arenas in a way of its own, on the group's one thread. Where a buffer of this
  // rank is; where a place of `rank`'s is mapped here. CorruptData for a place in an arena that somebody dropped too
  // early.
  comm::ArenaOffset place_of(const ConstBufferView& buffer) { return engine_->find(buffer); }
  std::byte* address(int of_rank, const comm::ArenaOffset& offset) { return engine_->address(of_rank, offset); }

 private:
  Work start(CollectiveArgs args) override;
  Work start_message(const comm::P2pOp& p2p) override;

  DescriptorChannels channels_;
  std::shared_ptr<ShmEngine> engine_;
};

// "shm".
Backend backend();

}  // namespace lockstep::shm
