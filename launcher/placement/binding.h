// SPDX-License-Identifier: Apache-2.0
// The processors on which each rank of a host may run (--bind). Pure, except for read_topology() and
// allowed_processors().
//
//   core: the cores that this command may use are divided among the ranks in the order of their numbers, each core with
//         all of its hardware threads; if the division leaves a rest, the first ranks have one core more. More ranks
//         than cores are refused.
//   numa: the NUMA nodes are divided likewise; if there are more ranks than nodes, some ranks share all cores of a
//   node.
#pragma once

#include <sched.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/flags/flag_values.h"

namespace lockstep::launcher {

// Numbers of processors, rising, as in the kernel: each is a hardware thread.
using Processors = std::vector<int>;

// Parses "0-3,8"; returns nullopt if the text is not one of the kernel's lists. A newline may end it.
std::optional<Processors> parse_processors(std::string_view text);
// Returns "0-3,8".
std::string describe_processors(const Processors& processors);

// Groups of processors, ordered by their first processor.
struct Topology {
  std::vector<Processors> cores;  // the hardware threads of each core
  std::vector<Processors> nodes;  // NUMA nodes
};
// Returns the topology of the `allowed` processors only. `root` is /sys/devices/system, or another folder in tests. For
// values that can't be read there it assumes one thread per core, and one node.
Topology read_topology(const std::string& root, const Processors& allowed);
// Returns the processors on which this process may run. Throws SystemError.
Processors allowed_processors();
cpu_set_t mask_of(const Processors& processors);

struct RankBinding {
  Processors processors = {};
  int cores = 0;  // number of cores for this rank alone: the ranks on a node divide its cores
};
// Returns a binding for each local rank; empty for Binding::none. Throws InvalidArgument if there are more ranks than
// cores.
std::vector<RankBinding> bind_ranks(Binding binding, const Topology& topology, int ranks);
// Returns "rank 0 to 0-3, rank 1 to 4-7" for the first eight.
std::string describe_bindings(const std::vector<RankBinding>& bindings, int first_rank);

}  // namespace lockstep::launcher
