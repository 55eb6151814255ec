// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/stopped_ranks.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <string_view>
#include <vector>

#include "launcher/process/process_table.h"
#include "runtime/base/process_state.h"
#include "runtime/base/signal_name.h"

namespace lockstep::launcher {
namespace {

// Returns the signal that stopped a child of this process; 0 if the process is not a child, or runs.
int stop_signal_of(pid_t pid) {
  siginfo_t info{};
  const int result = waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOHANG | WNOWAIT);
  return result == 0 && info.si_pid == pid ? info.si_status : 0;
}

std::string_view remedy_of(int signal) {
  if (signal == SIGTTIN)
    return "; the process read from the terminal, which no rank may do: give its input through a pipe or a file";
  if (signal == SIGTTOU) return "; the process wrote to the terminal itself: let it write to its stdout or stderr";
  return "";
}

}  // namespace

StoppedRanks::News StoppedRanks::see(int rank, bool is_stopped) {
  const auto known = stops_.find(rank);
  if (!is_stopped) {
    if (known == stops_.end()) return News::none;
    const bool said = known->second.said;
    stops_.erase(known);
    return said ? News::goes_on : News::none;
  }
  if (known == stops_.end()) {
    stops_.emplace(rank, Stop{.since = clock_.elapsed()});
    return News::none;
  }
  if (known->second.said || stopped_for(rank) < kPatience) return News::none;
  known->second.said = true;
  return News::stopped;
}

std::chrono::nanoseconds StoppedRanks::stopped_for(int rank) const {
  const auto known = stops_.find(rank);
  return known == stops_.end() ? std::chrono::nanoseconds{0} : clock_.elapsed() - known->second.since;
}

std::string describe_stop(const std::string& rank, pid_t rank_pid, const StoppedProcess& process,
                          std::chrono::duration<double> stopped_for, bool ends_job) {
  const std::string whose =
      process.pid == rank_pid ? rank : fmt::format("{}: its process {} (pid {})", rank, process.name, process.pid);
  const std::string signal = process.signal > 0 ? signal_name(process.signal) : "SIGSTOP or Ctrl-Z";
  const std::string time =
      ends_job ? fmt::format("{:.1f} s of {} s allowed", stopped_for.count(), StoppedRanks::kPatience.count())
               : fmt::format("{:.1f} s, and is waited for, as LOCKSTEP_LIVENESS=off says", stopped_for.count());
  return fmt::format("{} is stopped ({}) for {}; 'kill -CONT {}' resumes it{}{}", whose, signal, time, process.pid,
                     ends_job ? ", and LOCKSTEP_LIVENESS=off waits for that" : "", remedy_of(process.signal));
}

std::optional<StoppedProcess> find_stopped(pid_t started, pid_t member) {
  std::vector<ProcessEntry> line;
  if (member != 0) line = path_between(started, member);
  if (line.empty()) {
    auto own = process_entry(started);
    if (!own) return std::nullopt;
    line = descendants_of(started);
    line.insert(line.begin(), std::move(*own));
  }
  const auto found = std::find_if(line.begin(), line.end(), [](const ProcessEntry& entry) {
    return entry.state == 'T' && process_state(entry.pid) == ProcessState::stopped;
  });
  if (found == line.end()) return std::nullopt;
  return StoppedProcess{.pid = found->pid, .name = found->name, .signal = stop_signal_of(found->pid)};
}

}  // namespace lockstep::launcher
