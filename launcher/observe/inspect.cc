// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "launcher/observe/top.h"
#include "launcher/system.h"
#include "launcher/watch/process_table.h"
#include "launcher/watch/stacks.h"
#include "runtime/membership/member_info.h"

namespace lockstep::launcher {
namespace {

// gdb reads the symbols of all that is loaded, LibTorch's too.
constexpr std::chrono::seconds kStackLimit{30};

std::string threads_and_stacks(pid_t pid) {
  std::string text;
  const auto threads = threads_of(pid);
  for (const std::string& line : threads) text += fmt::format("    {}\n", line);
  if (threads.empty() || !can_show_stacks()) return text;
  const Stacks stacks = stacks_of(pid, Deadline::after(kStackLimit));
  for (const std::string& line : stacks.lines) text += fmt::format("    {}\n", line);
  if (!stacks.problem.empty()) text += fmt::format("    no stacks: {}\n", stacks.problem);
  return text;
}

std::string describe(const ReportedRank& rank, std::string_view here) {
  std::string text = fmt::format("\nrank {} (host {}, pid {}): {}", rank.rank, rank.host, rank.pid, rank.state);
  if (rank.collectives > 0) {
    text +=
        fmt::format(", collective {} ({}) started {:.1f} s ago", rank.collectives, rank.collective, rank.unchanged_s);
  }
  text += "\n";
  if (rank.host == here) return text + threads_and_stacks(rank.pid);
  return text + "    on another host: lockstep inspect shows its threads and stacks there\n";
}

// The ranks of this host that the launcher was told nothing of: their processes, which have the variables it gave them.
std::string describe_others(const LiveReport& report, std::string_view here) {
  const RunFacts& facts = report.facts;
  std::string text;
  const auto processes = descendants_of(facts.pid);
  for (int rank = facts.first_rank; rank < facts.first_rank + facts.ranks; ++rank) {
    const bool is_known = std::any_of(report.ranks.begin(), report.ranks.end(),
                                      [rank](const ReportedRank& it) { return it.rank == rank; });
    const auto process = std::find_if(processes.begin(), processes.end(), [rank](const ProcessEntry& it) {
      return started_with(it.pid, fmt::format("RANK={}", rank));
    });
    if (is_known || process == processes.end()) continue;
    text += fmt::format(
        "\nrank {} (host {}, pid {}): {}\n{}", rank, here, process->pid,
        facts.node_rank == 0 ? "has not come to init_process_group" : "reports to the launcher of node rank 0",
        threads_and_stacks(process->pid));
  }
  return text;
}

}  // namespace

void inspect(const FoundRun& run) {
  const LiveReport report = ask_launcher(run);
  const std::string here = membership::ProcessInfo::of_this_process().host;
  std::string text = report.facts.node_rank == 0 ? as_screen(report, {}) : std::string();
  for (const ReportedRank& rank : report.ranks) text += describe(rank, here);
  text += describe_others(report, here);
  if (!can_show_stacks()) text += "\nno stacks: install eu-stack (Debian's elfutils) or gdb\n";
  write_to_stdout(text);
}

}  // namespace lockstep::launcher
