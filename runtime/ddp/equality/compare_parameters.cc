// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/equality/compare_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/hash.h"
#include "runtime/base/record.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/disagreement.h"

namespace lockstep {
namespace {

// Returns a list that has an entry for each option, followed by an entry for each parameter.
std::vector<std::string> list_of(std::span<const ParameterSpec> specs, std::span<const ComparedOption> options) {
  std::vector<std::string> list;
  for (const ComparedOption& option : options) list.push_back(option.value);
  for (const ParameterSpec& spec : specs) list.push_back(spec.describe());
  return list;
}

// Returns groups of ranks with equal values; the groups are ordered by the lowest rank of each group.
std::vector<std::vector<int>> group_by_value(std::span<const std::string> values) {
  std::map<std::string_view, std::size_t> seen;
  std::vector<std::vector<int>> groups;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    const auto [found, is_new] = seen.try_emplace(values[rank], groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(static_cast<int>(rank));
  }
  return groups;
}

}  // namespace

std::string describe_values(std::span<const std::string> by_rank) {
  const auto groups = group_by_value(by_rank);
  if (groups.size() <= 1) return {};
  std::vector<std::string> parts;
  for (const auto& ranks : groups) {
    parts.push_back(fmt::format("{} {} {}", rendezvous::describe_ranks(ranks), ranks.size() == 1 ? "has" : "have",
                                by_rank[static_cast<std::size_t>(ranks.front())]));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string first_difference(std::span<const ComparedOption> options, std::span<const std::vector<std::string>> lists) {
  std::size_t longest = 0;
  for (const auto& list : lists) longest = std::max(longest, list.size());
  for (std::size_t entry = 0; entry < longest; ++entry) {
    std::vector<std::string> values;
    for (const auto& list : lists) {
      values.push_back(entry < list.size() ? list[entry]
                                           : fmt::format("only {} parameters", list.size() - options.size()));
    }
    const std::string difference = describe_values(values);
    if (difference.empty()) continue;
    if (entry < options.size()) return fmt::format("{}: {}", options[entry].name, difference);
    return fmt::format("parameter {}: {}", entry - options.size(), difference);
  }
  return {};
}

void compare_parameters(ProcessGroup& group, std::span<const ParameterSpec> specs,
                        std::span<const ComparedOption> options, std::string_view remedy) {
  if (group.size() == 1) return;
  const std::string packed = write_texts(list_of(specs, options));
  // Exchange the texts with a collective: if a rank leaves without calling compare_parameters(), the collective fails
  // at once, and the error names the rank that left.
  const auto gather = [&](const std::string& text) {
    return comm::within_call("Reducer()", [&] { return all_gather_text(group, text); });
  };
  const auto groups = group_by_value(gather(fmt::format("{:016x}", hash64(packed))));
  if (groups.size() == 1) return;

  // For each hash, only the lowest rank with this hash sends its list: ranks with equal hashes have equal lists.
  const bool tells = std::any_of(groups.begin(), groups.end(),
                                 [&](const std::vector<int>& ranks) { return ranks.front() == group.rank(); });
  const std::vector<std::string> told = gather(tells ? packed : "");
  std::vector<std::vector<std::string>> lists(told.size());
  for (const auto& ranks : groups) {
    const auto list = require_texts(told[static_cast<std::size_t>(ranks.front())],
                                    fmt::format("Reducer: the parameters of rank {}", ranks.front()));
    for (const int rank : ranks) lists[static_cast<std::size_t>(rank)] = list;
  }
  const std::string difference = first_difference(options, lists);
  // Throw with throw_disagreement(), which waits for all ranks. A rank that threw without waiting would destroy its
  // group while other ranks still gather texts.
  comm::throw_disagreement(
      group, fmt::format("Reducer: the ranks train different models. First difference, {}. Build the same model, "
                         "with its parameters in the same order and the same options, on every rank{}{}",
                         difference, remedy.empty() ? "" : "; ", remedy));
}

}  // namespace lockstep
