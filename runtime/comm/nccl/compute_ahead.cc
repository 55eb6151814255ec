// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/compute_ahead.h"

#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"

namespace lockstep::nccl {
namespace {

// Between two questions.
constexpr std::chrono::milliseconds kLook{5};

}  // namespace

ComputeAhead::ComputeAhead(DeviceRuntime& runtime, DeviceId device, std::vector<std::shared_ptr<void>> ready,
                           Limits limits)
    : limits_(limits), patience_(limits.kernels), question_patience_(limits.question), ended_(ready.empty()) {
  if (ended_) return;
  try {
    call_.emplace(device, [&runtime, ready = std::move(ready), answers = answers_, limit = limits.kernels] {
      const Deadline deadline = Deadline::after(limit);
      for (const auto& event : ready) {
        while (!runtime.reached(event.get())) {
          if (deadline.expired()) return;
          ++*answers;
          std::this_thread::sleep_for(kLook);
        }
      }
    });
  } catch (const SystemError& error) {
    log_warn(
        "nccl: no thread could be started to see when the program's kernels on {} end: {}; so the abort of the group "
        "does not wait for these kernels; raise 'ulimit -u'",
        device.str(), error.what());
    ended_ = true;
  }
}

bool ComputeAhead::ended() {
  if (ended_) return true;
  took_too_long_ = patience_.over();
  if (const std::uint64_t answers = *answers_; answers != answers_seen_) {
    answers_seen_ = answers;
    question_patience_ = comm::ActiveTimeout(limits_.question);
  }
  ended_ = took_too_long_ || call_->wait(Deadline::after({})) || question_patience_.over();
  return ended_;
}

}  // namespace lockstep::nccl
