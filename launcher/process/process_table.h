// SPDX-License-Identifier: Apache-2.0
// Who is running on this host, from /proc.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/procfs.h"

namespace lockstep::launcher {

std::vector<ProcessEntry> process_table();

// All below `root`, which is not among them, without the subtrees of `except`.
std::vector<ProcessEntry> descendants(const std::vector<ProcessEntry>& table, pid_t root,
                                      const std::set<pid_t>& except);

// The same of what runs now, read process by process: on a large host cheaper than a table of all.
std::vector<ProcessEntry> descendants_of(pid_t root);

// "\t4711\t2": its pids, in this pid namespace first; empty if it has ended.
std::string pids_by_namespace(pid_t pid);
// The process below `root` with that pid, or, of the rank's, with that pid in a pid namespace of its own; 0: none.
pid_t process_of_rank(pid_t root, int rank, pid_t pid);

// `last` and its parents up to `first`, in the order from `first` on; empty if `first` isn't above it.
std::vector<ProcessEntry> path_between(pid_t first, pid_t last);

// True if the process was started with the variable "NAME=value"; false also if that can't be read.
bool started_with(pid_t pid, std::string_view variable);
// True if the process has the file open, such as "pipe:[4711]" (/proc/PID/fd); false also if that can't be read.
bool has_open(pid_t pid, std::string_view file);

}  // namespace lockstep::launcher
