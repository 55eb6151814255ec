// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/inspect.h"

#include <fmt/format.h>

#include "launcher/observe/top.h"
#include "launcher/system.h"
#include "launcher/watch/stacks.h"
#include "runtime/membership/member_info.h"

namespace lockstep::launcher {
namespace {

// gdb reads the symbols of all that is loaded, LibTorch's too.
constexpr std::chrono::seconds kStackLimit{30};

}  // namespace

void inspect(const FoundRun& run) {
  const LiveReport report = ask_for_report(run);
  std::string text = as_screen(report, {});
  const std::string here = membership::ProcessInfo::of_this_process().host;
  for (const ReportedRank& rank : report.ranks) {
    text += fmt::format("\nrank {} (host {}, pid {}): {}", rank.rank, rank.host, rank.pid, rank.state);
    if (rank.collectives > 0) {
      text +=
          fmt::format(", collective {} ({}) started {:.1f} s ago", rank.collectives, rank.collective, rank.unchanged_s);
    }
    text += "\n";
    if (rank.host != here) {
      text += "    on another host: its threads are seen there\n";
      continue;
    }
    const auto threads = threads_of(rank.pid);
    for (const std::string& line : threads) text += fmt::format("    {}\n", line);
    if (threads.empty() || !can_show_stacks()) continue;
    const Stacks stacks = stacks_of(rank.pid, Deadline::after(kStackLimit));
    for (const std::string& line : stacks.lines) text += fmt::format("    {}\n", line);
    if (!stacks.problem.empty()) text += fmt::format("    no stacks: {}\n", stacks.problem);
  }
  if (!can_show_stacks()) text += "\nno stacks: install eu-stack (Debian's elfutils) or gdb\n";
  write_to_stdout(text);
}

}  // namespace lockstep::launcher
