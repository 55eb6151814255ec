// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement/binding.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/procfs.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

Processors common(const Processors& one, const Processors& other) {
  Processors both;
  std::set_intersection(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(both));
  return both;
}

// Adds `part` to `parts` unless it is empty or there.
void add_part(std::vector<Processors>& parts, Processors part) {
  if (!part.empty() && std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(std::move(part));
}

// The range [begin, end) of `count` items for one of `parts`, in order and as even as possible; the first parts have
// one item more.
struct Share {
  std::size_t begin = 0;
  std::size_t end = 0;
};
Share share_of(std::size_t part, std::size_t parts, std::size_t count) {
  const std::size_t more = count % parts;
  const std::size_t begin = part * (count / parts) + std::min(part, more);
  return {begin, begin + count / parts + (part < more ? 1 : 0)};
}

Processors all_of(const std::vector<Processors>& parts, Share share) {
  Processors all;
  for (std::size_t i = share.begin; i < share.end; ++i) all.insert(all.end(), parts[i].begin(), parts[i].end());
  std::sort(all.begin(), all.end());
  return all;
}

int count_cores(const Topology& topology, const Processors& processors) {
  return static_cast<int>(std::count_if(topology.cores.begin(), topology.cores.end(),
                                        [&](const Processors& core) { return !common(core, processors).empty(); }));
}

// Divides the ranks among the nodes, for more ranks than nodes.
std::vector<RankBinding> share_nodes(const Topology& topology, std::size_t ranks) {
  std::vector<RankBinding> result;
  for (std::size_t node = 0; node < topology.nodes.size(); ++node) {
    const Share sharers = share_of(node, topology.nodes.size(), ranks);
    const int cores = count_cores(topology, topology.nodes[node]);
    const int each = std::max(1, cores / static_cast<int>(sharers.end - sharers.begin));
    result.insert(result.end(), sharers.end - sharers.begin, {topology.nodes[node], each});
  }
  return result;
}

}  // namespace

std::optional<Processors> parse_processors(std::string_view text) {
  Processors processors;
  if (text.ends_with('\n')) text.remove_suffix(1);
  for (const std::string_view item : split(text, ',')) {
    const auto dash = item.find('-');
    const auto first = parse_int(item.substr(0, dash));
    const auto last = dash == item.npos ? first : parse_int(item.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= CPU_SETSIZE) return std::nullopt;
    for (auto number = *first; number <= *last; ++number) processors.push_back(static_cast<int>(number));
  }
  std::sort(processors.begin(), processors.end());
  return processors;
}

std::string describe_processors(const Processors& processors) {
  std::string text;
  for (std::size_t i = 0; i < processors.size();) {
    std::size_t last = i;
    while (last + 1 < processors.size() && processors[last + 1] == processors[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", processors[i]);
    if (last > i) text += fmt::format("-{}", processors[last]);
    i = last + 1;
  }
  return text;
}

Topology read_topology(const std::string& root, const Processors& allowed) {
  Topology topology;
  Processors placed;  // processors that belong to a node
  for (const int processor : allowed) {
    const auto siblings =
        parse_processors(read_kernel_file(fmt::format("{}/cpu/cpu{}/topology/thread_siblings_list", root, processor)));
    add_part(topology.cores, siblings ? common(*siblings, allowed) : Processors{processor});
  }
  const auto nodes = parse_processors(read_kernel_file(root + "/node/online"));
  for (const int node : nodes.value_or(Processors{})) {
    const auto list = parse_processors(read_kernel_file(fmt::format("{}/node/node{}/cpulist", root, node)));
    if (!list) continue;  // a node without processors
    Processors here = common(*list, allowed);
    placed.insert(placed.end(), here.begin(), here.end());
    add_part(topology.nodes, std::move(here));
  }
  if (placed.size() < allowed.size()) topology.nodes = {allowed};
  // Orders neighbours by node, since some machines number the nodes' processors alternately.
  const auto node_of = [&](const Processors& core) {
    return std::ranges::find_if(topology.nodes, [&](const Processors& node) { return !common(node, core).empty(); });
  };
  std::ranges::stable_sort(topology.cores, {}, node_of);
  return topology;
}

Processors allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    throw SystemError(
        "--bind: can't ask which processors this command may use, of at most 1024 (give --bind none to start without)",
        errno);
  }
  Processors processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(static_cast<std::size_t>(i), &set)) processors.push_back(i);
  }
  return processors;
}

cpu_set_t mask_of(const Processors& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(static_cast<std::size_t>(processor), &set);
  return set;
}

std::string describe_bindings(const std::vector<RankBinding>& bindings, int first_rank) {
  int rank = first_rank;
  return joined(
      bindings,
      [&rank](const RankBinding& binding) {
        return fmt::format("rank {} to {}", rank++, describe_processors(binding.processors));
      },
      ", ", 8);
}

std::vector<RankBinding> bind_ranks(Binding binding, const Topology& topology, int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  if (binding == Binding::none) return {};
  if (binding == Binding::core && topology.cores.size() < count) {
    throw InvalidArgument(
        fmt::format("--bind core: {} ranks need a core each, but this command may use {} cores; start at most that "
                    "many ranks, or give --bind none",
                    ranks, topology.cores.size()));
  }
  const auto& parts = binding == Binding::core ? topology.cores : topology.nodes;
  if (parts.size() < count) return share_nodes(topology, count);
  std::vector<RankBinding> result;
  for (std::size_t rank = 0; rank < count; ++rank) {
    Processors own = all_of(parts, share_of(rank, count, parts.size()));
    const int cores = count_cores(topology, own);
    result.push_back({std::move(own), cores});
  }
  return result;
}

}  // namespace lockstep::launcher
