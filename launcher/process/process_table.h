// SPDX-License-Identifier: Apache-2.0
// The processes that run on this host, from /proc.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/procfs.h"

namespace lockstep::launcher {

std::vector<ProcessEntry> process_table();

// Returns all descendants of `root`, without `root` and the subtrees of `except`.
std::vector<ProcessEntry> descendants(const std::vector<ProcessEntry>& table, pid_t root,
                                      const std::set<pid_t>& except);

// Returns the descendants that run now, read process by process: on a large host that is cheaper than the whole table.
std::vector<ProcessEntry> descendants_of(pid_t root);

// Returns the process's pids, "\t4711\t2", in this pid namespace first; empty if the process has ended.
std::string pids_by_namespace(pid_t pid);
// Returns the process below `root` with that pid, or the rank's process with that pid in its own pid namespace; 0:
// none.
pid_t process_of_rank(pid_t root, int rank, pid_t pid);

// Returns the processes from `first` down to `last`; empty if `first` is not an ancestor of `last`.
std::vector<ProcessEntry> path_between(pid_t first, pid_t last);

// Returns true if the process was started with the variable "NAME=value"; false also if its environment can't be read.
bool started_with(pid_t pid, std::string_view variable);
// Returns true if the process has the file open, such as "pipe:[4711]" (/proc/PID/fd); false also if its descriptors
// can't be read.
bool has_open(pid_t pid, std::string_view file);

}  // namespace lockstep::launcher
