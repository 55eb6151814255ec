// SPDX-License-Identifier: Apache-2.0
// The program's kernels that stand before collectives and messages in their streams. The abort of a communicator comes
// back behind them (NCCL synchronizes its stream), and they may take long in a healthy program: how long an abort may
// take counts from their end.
//
// They are asked for in a thread of its own, which a driver that hangs keeps. Threads: one, the caller's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/device/device_runtime.h"
#include "runtime/comm/failure/active_timeout.h"
#include "runtime/comm/nccl/detachable_call.h"

namespace lockstep::nccl {

class ComputeAhead {
 public:
  struct Limits {
    std::chrono::nanoseconds kernels;   // how long they may take
    std::chrono::nanoseconds question;  // how long the driver may take to say whether one has ended
  };
  // `ready`: the events behind these kernels.
  ComputeAhead(DeviceRuntime& runtime, DeviceId device, std::vector<std::shared_ptr<void>> ready, Limits limits);

  // True once all have ended, the device does not tell any more, or a limit has passed; and ever after.
  bool ended();
  // They had not ended within the limit.
  bool took_too_long() const { return took_too_long_; }

 private:
  const Limits limits_;
  // Grows with each answer of the driver.
  const std::shared_ptr<std::atomic<std::uint64_t>> answers_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::optional<DetachableCall> call_;
  comm::ActiveTimeout patience_;
  comm::ActiveTimeout question_patience_;
  std::uint64_t answers_seen_ = 0;
  bool ended_ = false;
  bool took_too_long_ = false;
};

}  // namespace lockstep::nccl
