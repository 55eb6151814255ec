// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/stacks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "launcher/base/amounts.h"
#include "launcher/process/find_program.h"
#include "launcher/process/helper_program.h"
#include "launcher/process/process_table.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/procfs.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

constexpr std::size_t kHungLines = 16;

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

// Returns an empty command if neither program is installed.
std::vector<std::string> stack_command(pid_t pid) {
  const std::string number = fmt::format("{}", pid);
  const auto environment = Environment::of_process();
  if (const auto found = find_program("eu-stack", environment); found.problem.empty()) {
    return {found.path, "-s", "-i", "-p", number};
  }
  if (const auto found = find_program("gdb", environment); found.problem.empty()) {
    return {found.path, "-p", number, "-batch", "-nx", "-ex", "thread apply all -ascending backtrace"};
  }
  return {};
}

// Returns the reason why a debugger must not be asked; empty if it may.
std::string why_no_stacks(pid_t pid) {
  const auto process = process_entry(pid);
  if (!process || !process->alive()) return "the process has ended";
  const std::string pids = pids_by_namespace(pid);
  // Outside that namespace it is not visible that a debugger holds the process.
  if (std::count(pids.begin(), pids.end(), '\t') > 1) {
    return "it is in its own pid namespace, and would be taken for silent; gdb -p works within that";
  }
  // The debugger would wait until the process continues.
  return process->state == 'T' || process->state == 't' ? "the process is stopped" : "";
}

std::vector<ThreadState> threads_of(pid_t pid) {
  namespace fs = std::filesystem;
  std::vector<ThreadState> threads;
  std::error_code error;
  for (fs::directory_iterator it(fmt::format("/proc/{}/task", pid), error), end; !error && it != end;
       it.increment(error)) {
    const auto thread = parse_process_stat(read_kernel_file(it->path() / "stat"));
    if (!thread) continue;
    const std::string place = read_kernel_file(it->path() / "wchan");
    const bool waits = !place.empty() && place != "0";
    threads.push_back({.id = thread->pid,
                       .name = printable(thread->name),
                       .is_asleep = thread->state == 'S',
                       .what = state_in_words(thread->state) + (waits ? " in " + printable(place) : "")});
  }
  return threads;
}

bool is_head(std::string_view line) { return line.starts_with("Thread ") || line.starts_with("TID "); }

// Returns the thread id in the head of a stack: "TID 12:", "Thread 1 (Thread 0x7f (LWP 12) "t"):", "Thread 1 (LWP 12
// "t"):" or "Thread 1 (process 12):"; 0 if the head has none.
pid_t thread_at(std::string_view head) {
  for (const std::string_view mark : {"TID ", "(LWP ", "(process "}) {
    const auto at = head.find(mark);
    if (at == head.npos) continue;
    const std::string_view rest = head.substr(at + mark.size());
    return static_cast<pid_t>(parse_int(rest.substr(0, rest.find_first_not_of("0123456789"))).value_or(0));
  }
  return 0;
}

struct Stacks {
  std::vector<std::string> lines = {};
  std::string problem = {};  // reason why there are none
};

// Throws SystemError.
Stacks stacks_of(pid_t pid, const Deadline& deadline) {
  if (std::string problem = why_no_stacks(pid); !problem.empty()) return {.problem = std::move(problem)};
  const auto command = stack_command(pid);
  if (command.empty()) return {.problem = "neither eu-stack (Debian's elfutils) nor gdb is installed"};
  const auto result = run_helper(command, deadline);
  if (!result.ending) return {.problem = command.front() + " took too long"};
  Stacks stacks{.lines = frames_in(result.out)};
  if (stacks.lines.empty()) {
    stacks.problem =
        command.front() + " failed; see whether this user may trace the process (kernel.yama.ptrace_scope)";
  }
  return stacks;
}

}  // namespace

std::vector<std::string> frames_in(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    std::string_view line = take_word(text, '\n');
    if (line.starts_with("#") || is_head(line)) {
      lines.push_back(printable(line, kMostStackLineBytes));
    } else if (line.starts_with("    ") && !lines.empty() && lines.back().starts_with("#")) {
      line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
      lines.back() = printable(fmt::format("{} at {}", lines.back(), line), kMostStackLineBytes);
    }
  }
  return lines;
}

std::vector<std::string> lines_by_thread(pid_t pid, std::vector<ThreadState> threads,
                                         const std::vector<std::string>& frames) {
  std::map<pid_t, std::vector<std::string>> stacks;  // stacks with their heads
  pid_t current = 0;
  for (const std::string& line : frames) {
    if (is_head(line)) current = thread_at(line);
    stacks[current].push_back(line);
  }
  std::stable_partition(threads.begin(), threads.end(), [pid](const ThreadState& it) { return it.id == pid; });
  std::vector<std::string> lines;
  std::vector<pid_t> at_rest;
  for (const ThreadState& thread : threads) {
    const auto stack = stacks.extract(thread.id);
    if (thread.id != pid && thread.is_asleep && thread.name == kQuietThread) {
      at_rest.push_back(thread.id);
      continue;
    }
    lines.push_back(fmt::format("thread {} ({}): {}", thread.id, thread.name, thread.what));
    if (stack) lines.insert(lines.end(), stack.mapped().begin() + 1, stack.mapped().end());
  }
  for (const auto& [id, stack] : stacks) lines.insert(lines.end(), stack.begin(), stack.end());
  if (!at_rest.empty()) {
    lines.push_back(fmt::format("{} of lockstep's own {} for work: {}", count_of(std::ssize(at_rest), "thread"),
                                at_rest.size() == 1 ? "waits" : "wait", fmt::join(at_rest, ", ")));
  }
  return lines;
}

std::vector<std::string> threads_and_stacks(pid_t pid, const Deadline& deadline) noexcept {
  auto threads = threads_of(pid);
  if (threads.empty()) return {};
  Stacks stacks;
  try {
    stacks = stacks_of(pid, deadline);
  } catch (const Error& error) {
    stacks.problem = error.what();
  }
  auto lines = lines_by_thread(pid, std::move(threads), stacks.lines);
  if (!stacks.problem.empty()) lines.push_back(fmt::format("no stacks: {}", stacks.problem));
  if (const std::size_t all = lines.size(); all > kMostStackLines) {
    lines.resize(kMostStackLines - 1);
    lines.push_back(fmt::format("... and {} lines more", all - lines.size()));
  }
  return lines;
}

std::vector<std::string> stacks_of_hung_rank(pid_t pid) noexcept {
  try {
    auto lines = stacks_of(pid, Deadline::after(kHungLimit)).lines;
    lines.resize(std::min(lines.size(), kHungLines));
    return lines;
  } catch (const Error&) {  // the verdict is more important than the stacks
    return {};
  }
}

}  // namespace lockstep::launcher
