// SPDX-License-Identifier: Apache-2.0
// Which processors each rank of a host may run on (--bind). Pure but for read_topology() and allowed_processors().
//
//   core: the cores that this command may use, divided among the ranks in the order of their numbers, each with both of
//         its hardware threads; where they don't come out even the first ranks have one more. More ranks than cores are
//         refused.
//   numa: the NUMA nodes likewise; of more ranks than nodes some share a node, all of its cores.
#pragma once

#include <sched.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/flags/placement_flags.h"

namespace lockstep::launcher {

// Numbers of processors, rising, as the kernel counts them: each a hardware thread.
using Processors = std::vector<int>;

// "0-3,8"; nothing if the text is not one of the kernel's lists. A newline may end it.
std::optional<Processors> parse_processors(std::string_view text);
// "0-3,8".
std::string describe_processors(const Processors& processors);

// Processors that are one thing, by their first.
struct Topology {
  std::vector<Processors> cores;  // hardware threads of each
  std::vector<Processors> nodes;  // NUMA
};
// Of `allowed` alone. `root` is /sys/devices/system, or another place in tests. What can't be read there is as on a
// machine with one thread for each core, and one node.
Topology read_topology(const std::string& root, const Processors& allowed);
// The processors that this process may run on. Throws SystemError.
Processors allowed_processors();
cpu_set_t mask_of(const Processors& processors);

struct RankBinding {
  Processors processors = {};
  int cores = 0;  // of them, for this rank alone: a node's are divided among those that share it
};
// For each local rank; empty for Binding::none. Throws InvalidArgument if there are more ranks than cores.
std::vector<RankBinding> bind_ranks(Binding binding, const Topology& topology, int ranks);
// "rank 0 to 0-3, rank 1 to 4-7": of the first eight.
std::string describe_bindings(const std::vector<RankBinding>& bindings, int first_rank);

}  // namespace lockstep::launcher
