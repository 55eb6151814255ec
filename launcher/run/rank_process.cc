// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/rank_process.h"

#include <sys/wait.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"

namespace lockstep::launcher {

std::optional<ExitStatus> reap(int pidfd) {
  siginfo_t info{};
  const int result = uninterrupted([&] { return waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG); });
  if (result != 0) throw SystemError("waitid for a rank", errno);
  if (info.si_pid == 0) return std::nullopt;
  return ExitStatus{
      .by_signal = info.si_code != CLD_EXITED, .value = info.si_status, .dumped_core = info.si_code == CLD_DUMPED};
}

}  // namespace lockstep::launcher
