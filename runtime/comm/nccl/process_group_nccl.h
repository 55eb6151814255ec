// SPDX-License-Identifier: Apache-2.0
// The process group on GPUs, one per rank, over NCCL.
//
// Collectives on the group's device follow its compute stream and block nobody: see nccl_engine.h. Buffers in host
// memory go through pinned memory and are written when the work is done. Weighted sums and averages are divided on the
// communication stream. Values are combined in the order that NCCL chooses, 16-bit floats are rounded at each step of
// its way, and integers wrap in their own type: runs on other machines may differ in the last bits.
//
// With a result in host memory Work::wait_on() makes the host wait, as wait() does.
//
// send and recv run in the program's order, among the collectives and in their stream, as ncclSend and ncclRecv do: a
// send has ended when the receiver has come to it, and what comes behind either of them waits for it. So all ranks keep
// one order of collectives and messages, and of two ranks that exchange messages one sends first and the other receives
// first. Tags would allow another order: a tag other than 0, and a message to oneself, are InvalidArgument. Sizes and
// types of both sides are equal; NCCL does not compare them.
//
// Several groups in one process have communicators of their own on one device, and are launched by one thread, in the
// order in which the program starts their calls (launch_thread.h). Start these in one order on all ranks: kernels of
// two communicators that are launched in different orders may wait for each other for ever. Groups that are used from
// several threads have no such order unless the program makes one. Kernels that are launched in one order may still
// begin in another, where what they wait for is computed in another: that NCCL needs room for both at once is left
// (NCCL_LAUNCH_ORDER_IMPLICIT=1 makes the device keep the order of launches). The same holds for whatever waits for the
// whole device: cudaFree, cudaDeviceSynchronize, the first launch of a kernel (CUDA_MODULE_LOADING=EAGER loads all of
// them before), the end of a group. End groups in one order on all ranks.
//
// A call that waits for other ranks before NCCL launches it holds up those that the program started after it, in any
// group: the first of its kind, or with its peer, for which NCCL connects, and each one with
// LOCKSTEP_CHECK_COLLECTIVES=1. A group that opens, ends or has failed holds up no other.
//
// Collectives can't be part of CUDA graphs: while the group's stream, or the one that is to wait, is being captured,
// starting and wait_on() throw InvalidArgument, and nothing has been started. A program may capture streams meanwhile
// that the group does not know; but CUDA breaks a capture when anybody waits for the whole device, as the end of a
// group and of an arena do, so end it before these.
//
// Contract: comm/process_group.h.
#pragma once

#include <memory>

#include "runtime/comm/nccl/arenas.h"
#include "runtime/comm/nccl/nccl_engine.h"
#include "runtime/comm/process_group_base.h"

namespace lockstep::nccl {

class ProcessGroupNccl final : public comm::ProcessGroupBase {
 public:
  // Collective. Throws BackendUnavailable (no NCCL, no such GPU, two ranks on one), Timeout, PeerLost.
  static std::shared_ptr<ProcessGroup> create(const GroupContext& context, const Deadline& deadline);
  ProcessGroupNccl(GroupContext context, std::shared_ptr<NcclEngine> engine);
  // Says goodbye; aborts during unwinding, and if a collective of this rank is still under way that no stream waits
  // for.
  ~ProcessGroupNccl() override;
  ProcessGroupNccl(const ProcessGroupNccl&) = delete;
  ProcessGroupNccl& operator=(const ProcessGroupNccl&) = delete;

  std::string_view backend() const override { return "nccl"; }
  Arena allocate(std::size_t bytes) override;

  StreamView stream() const override { return stream_; }
  void set_stream(StreamView stream) override;
  bool takes(DeviceId where) const override { return where == device() || where.kind == DeviceKind::cpu; }

  void progress() override;
  void abort(const std::string& cause) override;
  void on_peer_failure(const Cause& cause) override { engine_->on_peer_failure(cause); }
  std::int64_t last_sequence() const override { return static_cast<std::int64_t>(engine_->last()); }

 private:
  Work start(comm::CollectiveArgs args) override;
  Work start_message(const comm::P2pOp& p2p) override;
  // Returns what `start` starts. Where it throws, the group fails, but for InvalidArgument.
  template <typename Start>
  Work or_abort(Start start);
  // A message that NCCL can match by the program's order.
  void check_program_order(std::string_view operation, int peer, int tag) const;
  // Device memory is where it says.
  void check_place(std::string_view operation, const ConstBufferView& buffer) const;

  std::shared_ptr<NcclEngine> engine_;
  std::shared_ptr<Arenas> arenas_;
  StreamView stream_;
};

}  // namespace lockstep::nccl
