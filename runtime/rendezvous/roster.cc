#include "runtime/rendezvous/roster.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::rendezvous {
namespace {

constexpr std::size_t kMostDescribed = 12;

// Hosts by boot id, in order of their lowest rank.
std::vector<std::string> hosts(const Roster& roster) {
  std::vector<std::string> result;
  for (const Member& member : roster) {
    if (std::find(result.begin(), result.end(), member.boot_id) == result.end()) result.push_back(member.boot_id);
  }
  return result;
}

}  // namespace

std::string Member::describe() const { return fmt::format("rank {} (host {}, pid {})", rank, host, pid); }

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

std::string describe_members(const Roster& roster) {
  std::string text;
  for (std::size_t i = 0; i < std::min(roster.size(), kMostDescribed); ++i) {
    text += (i > 0 ? ", " : "") + roster[i].describe();
  }
  if (roster.size() > kMostDescribed) text += fmt::format(" and {} more", roster.size() - kMostDescribed);
  return text;
}

int count_hosts(const Roster& roster) { return static_cast<int>(hosts(roster).size()); }

std::string describe_hosts(const Roster& roster) {
  std::string text;
  for (const std::string& boot_id : hosts(roster)) {
    std::vector<int> ranks;
    std::string name;
    for (const Member& member : roster) {
      if (member.boot_id != boot_id) continue;
      if (ranks.empty()) name = member.host;
      ranks.push_back(member.rank);
    }
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, describe_ranks(ranks));
  }
  return text;
}

std::vector<int> ranks_beside(const Roster& roster, int rank) {
  std::vector<int> result;
  for (const Member& member : roster) {
    if (member.boot_id == roster[static_cast<std::size_t>(rank)].boot_id) result.push_back(member.rank);
  }
  return result;
}

int host_index(const Roster& roster, int rank) {
  const auto all = hosts(roster);
  const auto found = std::find(all.begin(), all.end(), roster[static_cast<std::size_t>(rank)].boot_id);
  return static_cast<int>(found - all.begin());
}

}  // namespace lockstep::rendezvous
