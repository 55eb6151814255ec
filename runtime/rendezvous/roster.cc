// SPDX-License-Identifier: Apache-2.0
#include "lockstep/rendezvous/roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/base/printable.h"
#include "runtime/base/text.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::size_t kMostDescribed = 12;

// The first member of each host, in order of rank.
std::vector<const Member*> hosts(const Roster& roster) {
  std::vector<const Member*> result;
  std::set<std::pair<std::string_view, std::string_view>> known;
  for (const Member& member : roster) {
    if (known.emplace(member.boot_id, member.network).second) result.push_back(&member);
  }
  return result;
}

}  // namespace

std::string Member::describe() const {
  return fmt::format("rank {} (host {}, pid {})", rank, printable(host, 255), pid);
}

std::string describe_ranks(std::span<const int> ranks) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i >= 3) {
      runs.push_back(fmt::format("{}-{}", ranks[i], ranks[end - 1]));
      i = end;
    } else {
      runs.push_back(fmt::format("{}", ranks[i++]));
    }
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i > 0) text += i + 1 == runs.size() ? " and " : ", ";
    text += runs[i];
  }
  return text;
}

std::string describe_members(const Roster& roster) { return joined(roster, &Member::describe, ", ", kMostDescribed); }

int count_hosts(const Roster& roster) { return static_cast<int>(hosts(roster).size()); }

std::string describe_hosts(const Roster& roster) {
  return joined(
      hosts(roster),
      [&](const Member* first) {
        std::vector<int> names;
        for (const Member& member : roster) {
          if (member.beside(*first)) names.push_back(member.rank);
        }
        std::sort(names.begin(), names.end());
        return fmt::format("{}: {}", printable(first->host, 255), describe_ranks(names));
      },
      "; ");
}

std::vector<int> ranks_beside(const Roster& roster, int rank) {
  std::vector<int> result;
  for (std::size_t r = 0; r < roster.size(); ++r) {
    if (roster[r].beside(roster[static_cast<std::size_t>(rank)])) result.push_back(static_cast<int>(r));
  }
  return result;
}

int host_index(const Roster& roster, int rank) {
  const auto all = hosts(roster);
  const Member& member = roster[static_cast<std::size_t>(rank)];
  const auto found = std::find_if(all.begin(), all.end(), [&](const Member* first) { return first->beside(member); });
  return static_cast<int>(found - all.begin());
}

}  // namespace lockstep::rendezvous
