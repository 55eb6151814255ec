// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/process_state.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "runtime/base/procfs.h"

namespace lockstep {
namespace {

// The text behind "NAME:\t", or nothing.
std::string_view field_of(std::string_view status, std::string_view name) {
  while (!status.empty()) {
    const auto end = status.find('\n');
    std::string_view line = status.substr(0, end);
    if (line.starts_with(name) && line.substr(name.size()).starts_with(':')) {
      line.remove_prefix(name.size() + 1);
      const auto begin = line.find_first_not_of(" \t");
      return begin == std::string_view::npos ? std::string_view() : line.substr(begin);
    }
    if (end == std::string_view::npos) break;
    status.remove_prefix(end + 1);
  }
  return {};
}

ProcessState read_status(const std::string& path, ProcessState absent) noexcept {
  try {
    const std::string text = read_kernel_file(path);
    return text.empty() ? absent : process_state_of_status(text);
  } catch (...) {  // Only ever makes a message more precise.
    return ProcessState::unknown;
  }
}

}  // namespace

ProcessState process_state_of_status(std::string_view status) {
  const std::string_view state = field_of(status, "State");
  const std::string_view tracer = field_of(status, "TracerPid");
  if (state.empty()) return ProcessState::unknown;
  if (state.front() == 'X') return ProcessState::gone;
  // The main thread of a process may have ended while others still run.
  if (state.front() == 'Z') return field_of(status, "Threads") > "1" ? ProcessState::running : ProcessState::gone;
  if (state.front() == 't' || (!tracer.empty() && tracer != "0")) return ProcessState::traced;
  return state.front() == 'T' ? ProcessState::stopped : ProcessState::running;
}

ProcessState process_state(int pid) noexcept {
  struct stat found {};
  if (::stat("/proc/self/status", &found) != 0) return ProcessState::unknown;
  try {
    return read_status(fmt::format("/proc/{}/status", pid), ProcessState::gone);
  } catch (...) {  // no memory for a path
    return ProcessState::unknown;
  }
}

bool this_process_is_traced() noexcept {
  return read_status("/proc/self/status", ProcessState::unknown) == ProcessState::traced;
}

std::string pid_namespace() {
  struct stat found {};
  if (::stat("/proc/self/ns/pid", &found) != 0) return {};
  return std::to_string(found.st_ino);
}

}  // namespace lockstep
