// SPDX-License-Identifier: Apache-2.0
// A message between two ranks, as an NCCL send or receive.
//
// Messages are launched in the order in which the program starts collectives and messages, on the communicator and in
// the stream of the collectives. NCCL knows no tags, and a send holds that stream up until the receiver has come to it:
// process_group_nccl.h says what this asks of a program.
#pragma once

#include <string>

#include "runtime/comm/nccl/pending_call.h"
#include "runtime/comm/op_record.h"

namespace lockstep::nccl {

class NcclMessage final : public PendingCall {
 public:
  explicit NcclMessage(const comm::P2pOp& of) : p2p(of) {}

  // "send of 10 x float32 to rank 1 with tag 0".
  std::string describe() const override;
  void prepare(const LaunchContext& context) override { staged_.prepare(context, p2p.buffer, p2p.target); }
  void launch(const LaunchContext& context) override;
  void after_launch(const LaunchContext& context) override;
  void finish() override { staged_.finish(); }
  bool is_for_host() const override {
    return !p2p.is_send && p2p.buffer.device.kind == DeviceKind::cpu && p2p.buffer.bytes() > 0;
  }
  int awaited_peer() const override { return p2p.peer; }
  bool is_after(int rank, const Goodbye& goodbye) const override;

  const comm::P2pOp p2p;
  std::int64_t number = 0;  // of this rank's sends to the peer, or receives from it, from 1

 private:
  StagedBuffer staged_;
};

}  // namespace lockstep::nccl
