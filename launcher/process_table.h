// Who is running on this host, from /proc.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  char state = '?';       // as ps shows it: R, S, D, T, Z ...
  std::string name = {};  // at most 15 characters, as the kernel keeps it

  // A zombie is gone: nothing but its exit code is left.
  bool alive() const { return state != 'Z' && state != 'X'; }
};

// The text of /proc/PID/stat; nothing if it isn't one. The name in it may hold spaces and parentheses.
std::optional<ProcessEntry> parse_process_stat(std::string_view text);

// Nothing if there is no such process.
std::optional<ProcessEntry> process_entry(pid_t pid);
std::vector<ProcessEntry> process_table();

// All below `root`, which is not among them, without the subtrees of `except`.
std::vector<ProcessEntry> descendants(const std::vector<ProcessEntry>& table, pid_t root,
                                      const std::set<pid_t>& except);

// The same of what runs now, read process by process: on a large host cheaper than a table of all.
std::vector<ProcessEntry> descendants_of(pid_t root);
// `last` and its parents up to `first`, in the order from `first` on; empty if `first` isn't above it.
std::vector<ProcessEntry> path_between(pid_t first, pid_t last);

// True if the process was started with the variable "NAME=value"; false also if that can't be read.
bool started_with(pid_t pid, std::string_view variable);
// True if the process has the file open, such as "pipe:[4711]" (/proc/PID/fd); false also if that can't be read.
bool has_open(pid_t pid, std::string_view file);

}  // namespace lockstep::launcher
