// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/identity/slurm_lists.h"

#include <algorithm>
#include <climits>

#include "lockstep/base/environment.h"
#include "runtime/base/text.h"

namespace lockstep::rendezvous {

std::optional<std::string> first_host(std::string_view node_list) {
  std::string host;
  while (!node_list.empty() && node_list.front() != ',') {
    if (node_list.front() == ']') return std::nullopt;
    if (node_list.front() != '[') {
      host += node_list.front();
      node_list.remove_prefix(1);
      continue;
    }
    const auto close = node_list.find(']');
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view inside = node_list.substr(1, close - 1);
    const std::string_view number = inside.substr(0, inside.find_first_of(",-"));
    if (!parse_int(number)) return std::nullopt;
    host += number;  // with its leading zeros
    node_list.remove_prefix(close + 1);
  }
  if (host.empty()) return std::nullopt;
  return host;
}

std::optional<int> tasks_on_node(std::string_view tasks_per_node, int index) {
  if (index < 0) return std::nullopt;
  std::int64_t nodes = 0;
  while (!tasks_per_node.empty()) {
    std::string_view item = take_word(tasks_per_node, ',');
    std::int64_t repeat = 1;
    if (const auto open = item.find("(x"); open != std::string_view::npos) {
      if (!item.ends_with(')')) return std::nullopt;
      const auto count = parse_int(item.substr(open + 2, item.size() - open - 3));
      if (!count || *count < 1 || *count > INT_MAX) return std::nullopt;
      repeat = *count;
      item = item.substr(0, open);
    }
    const auto tasks = parse_int(item);
    if (!tasks || *tasks < 1 || *tasks > INT_MAX) return std::nullopt;
    nodes += repeat;
    if (index < nodes) return static_cast<int>(*tasks);
  }
  return std::nullopt;
}

}  // namespace lockstep::rendezvous
