// SPDX-License-Identifier: Apache-2.0
// Processes as the kernel shows them under /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// The text of a file of the kernel; empty if it can't be read, as when its process ends meanwhile. Does not throw for
// an error of the kernel: a process may end between open and read too, and read then fails with ESRCH.
std::string read_kernel_file(const std::string& path);

// A process as /proc/PID/stat has it.
struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  char state = '?';         // as ps shows it: R, S, D, T, Z ...
  std::string name = {};    // at most 15 characters, as the kernel keeps it
  std::int64_t user = 0;    // CPU time in the kernel's ticks: of the program,
  std::int64_t system = 0;  // and of the kernel for it
  std::int64_t start = 0;   // in the kernel's ticks since boot: tells a process from a later one of its pid

  // A zombie is gone: nothing but its exit code is left.
  bool alive() const { return state != 'Z' && state != 'X'; }
};

// The entry in a text of /proc/PID/stat; nullopt if `text` isn't one. The name in it may hold spaces and parentheses.
std::optional<ProcessEntry> parse_process_stat(std::string_view text);
// The entry of process `pid`; nullopt if there is no such process.
std::optional<ProcessEntry> process_entry(pid_t pid);

// Whether a text of /proc/PID/status says that the process has a handler for the signal.
bool handles_signal(std::string_view status, int signal);

}  // namespace lockstep
