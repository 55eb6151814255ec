// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/job_tree.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr int kMostReplaced = 3;  // limit for guardians

}  // namespace

JobTree::JobTree(Guardian& guardian) : guardian_(guardian) {
  // Processes that a rank leaves behind become children of this process, which ends them with the job.
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw SystemError("prctl PR_SET_CHILD_SUBREAPER", errno);
  for (const auto& entry : descendants(process_table(), getpid(), {})) strangers_.insert(entry.pid);
}

void JobTree::signal_all(std::span<const RankProcess> ranks, int signal) const {
  std::set<pid_t> groups;
  for (const auto& process : ranks) {
    if (!process.running()) continue;
    groups.insert(process.pid);
    kill(-process.pid, signal);  // the rank is not reaped yet, so the number is still its own; it may have ended
  }
  // Processes that have left their group, or outlived the rank that led it.
  for (const auto& entry : members()) {
    if (!groups.contains(entry.group)) kill(entry.pid, signal);
  }
}

std::vector<ProcessEntry> JobTree::members() const {
  auto except = strangers_;
  except.insert(guardian_.pid());
  auto found = descendants(process_table(), getpid(), except);
  std::erase_if(found, [](const auto& entry) { return !entry.alive(); });
  return found;
}

bool JobTree::reap_others(std::span<RankProcess> ranks, bool& guardian_died) {
  while (true) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
      if (errno == EINTR) continue;
      if (errno == ECHILD) return true;
      throw SystemError("waitid", errno);
    }
    if (info.si_pid == 0) return true;
    const bool is_rank = std::ranges::any_of(
        ranks, [&](const auto& process) { return process.pid == info.si_pid && process.running(); });
    if (is_rank) return false;  // its own descriptor reports its turn; the other children are handled afterwards
    if (info.si_pid == guardian_.pid()) guardian_died = true;
    siginfo_t reaped{};
    waitid(P_PID, static_cast<id_t>(info.si_pid), &reaped, WEXITED | WNOHANG);
    strangers_.erase(info.si_pid);
    release_empty_groups(ranks);
  }
}

bool JobTree::replace_guardian(std::span<const RankProcess> ranks) {
  if (replaced_ == kMostReplaced) return false;
  ++replaced_;
  std::vector<pid_t> groups;
  for (const auto& process : ranks) {
    if (process.pid > 0 && !process.group_is_empty) groups.push_back(process.pid);
  }
  try {
    guardian_.replace(groups);
  } catch (const SystemError&) {
    // No process could be created; the job continues without a guardian, and a message says so.
    return false;
  }
  return true;
}

void JobTree::release_empty_groups(std::span<RankProcess> ranks) const {
  for (auto& process : ranks) {
    // The kernel does not reuse the number while a process of the group exists.
    if (!process.ending || process.group_is_empty || kill(-process.pid, 0) == 0 || errno != ESRCH) continue;
    process.group_is_empty = true;
    guardian_.forget(process.pid);
  }
}

}  // namespace lockstep::launcher
