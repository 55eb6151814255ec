// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "launcher/doctor/helper_program.h"
#include "launcher/observe/top.h"
#include "launcher/run/find_program.h"
#include "launcher/system.h"
#include "lockstep/base/environment.h"
#include "runtime/base/printable.h"
#include "runtime/base/procfs.h"
#include "runtime/membership/member_info.h"

namespace lockstep::launcher {
namespace {

// gdb reads the symbols of all that is loaded, LibTorch's too.
constexpr std::chrono::seconds kStackLimit{30};

std::string state_in_words(char state) {
  switch (state) {
    case 'R': return "running";
    case 'S': return "sleeping";
    case 'D': return "waiting for a device";
    case 'T': return "stopped";
    case 't': return "stopped by a debugger";
    default: return std::string(1, state);
  }
}

// Threads and frames, without what gdb says of itself.
void add_frames(std::string_view text, std::string& to) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const bool is_frame = line.starts_with("#") || line.starts_with("Thread ") || line.starts_with("TID ");
    if (is_frame) to += fmt::format("    {}\n", printable(line, 400));
  }
}

// The stacks, or why there are none.
void add_stacks(const std::vector<std::string>& command, std::string& to) {
  const auto result = doctor::run_helper(command, Deadline::after(kStackLimit));
  const bool worked = result.ending && result.ending->ok() && result.out.find('#') != std::string::npos;
  if (worked) {
    add_frames(result.out, to);
  } else {
    to += fmt::format(
        "    no stacks: {} {}\n", command.front(),
        result.ending ? "failed; may this user trace the process (kernel.yama.ptrace_scope)?" : "took too long");
  }
}

}  // namespace

std::vector<std::string> stack_command(pid_t pid) {
  const std::string number = fmt::format("{}", pid);
  const auto environment = Environment::of_process();
  if (const auto found = find_program("eu-stack", environment); found.problem.empty()) {
    return {found.path, "-p", number};
  }
  if (const auto found = find_program("gdb", environment); found.problem.empty()) {
    return {found.path, "-p", number, "-batch", "-nx", "-ex", "thread apply all backtrace"};
  }
  return {};
}

std::vector<std::string> threads_of(pid_t pid) {
  namespace fs = std::filesystem;
  std::vector<std::string> lines;
  std::error_code error;
  for (fs::directory_iterator it(fmt::format("/proc/{}/task", pid), error), end; !error && it != end;
       it.increment(error)) {
    const auto thread = parse_process_stat(read_kernel_file(it->path() / "stat"));
    if (!thread) continue;
    const std::string place = read_kernel_file(it->path() / "wchan");
    const bool waits = !place.empty() && place != "0";
    lines.push_back(fmt::format("thread {} ({}): {}{}", thread->pid, printable(thread->name),
                                state_in_words(thread->state), waits ? " in " + printable(place) : ""));
  }
  return lines;
}

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
    if (const auto command = stack_command(rank.pid); !threads.empty() && !command.empty()) add_stacks(command, text);
  }
  if (stack_command(0).empty()) text += "\nno stacks: install eu-stack (Debian's elfutils) or gdb\n";
  write_to_stdout(text);
}

}  // namespace lockstep::launcher
