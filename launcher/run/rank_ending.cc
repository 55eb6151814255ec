// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/rank_ending.h"

#include <fmt/format.h>
#include <signal.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/process_state.h"
#include "runtime/base/procfs.h"

namespace lockstep::launcher {
namespace {

bool handles_sigterm(pid_t pid) {
  return handles_signal(read_kernel_file(fmt::format("/proc/{}/status", pid)), SIGTERM);
}

}  // namespace

void RankEnding::begin(Why why) {
  is_after_failure_ = is_after_failure_ || why == Why::failed;
  kill_at_ = Deadline::after(options_.grace);
  save_until_ = Deadline::after(options_.stop_timeout);
  tree_.signal_all(ranks_, SIGTERM);
}

void RankEnding::kill() {
  kill_at_.reset();
  give_up_at_ = Deadline::after(kUnkillableLimit);
  tree_.signal_all(ranks_, SIGKILL);
}

void RankEnding::ask_to_stop() {
  bool has_heard = false;
  for (const RankProcess& process : ranks_) {
    if (!process.running() || !handles_sigterm(process.pid)) continue;
    has_heard = true;
    if (::kill(process.pid, SIGTERM) != 0 && errno != ESRCH) throw SystemError("kill", errno);
  }
  if (!has_heard) {
    console_.message(
        "the ranks of this host do not handle SIGTERM, so they continue, and a newly joined host waits until the ranks "
        "start again; call stop_on_signals() in the program to let the ranks stop for new hosts");
  }
}

void RankEnding::check() {
  if (!kill_at_ || !kill_at_->expired()) return;
  if (someone_saves()) {
    kill_at_ = Deadline::after(options_.grace);
  } else {
    kill();
  }
}

void RankEnding::conclude() {
  kill_at_.reset();
  give_up_at_.reset();
}

bool RankEnding::someone_saves() {
  if (!is_after_failure_ || save_until_.expired()) return false;
  for (const RankProcess& process : ranks_) {
    if (!process.running() || process_state(process.pid) == ProcessState::stopped) continue;
    if (!handles_sigterm(process.pid)) continue;
    if (!std::exchange(has_said_who_saves_, true)) {
      console_.message(fmt::format(
          "rank {} handles SIGTERM, and may be saving, so this launcher gives it {} s to end (--stop-timeout)",
          process.rank, std::chrono::duration<double>(options_.stop_timeout).count()));
    }
    return true;
  }
  return false;
}

}  // namespace lockstep::launcher
