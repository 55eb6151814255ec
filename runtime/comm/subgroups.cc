// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group agree on groups of some of them: each says what it asks for, all compare, and each new group
// is then made by its own ranks.
#include "runtime/comm/subgroups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/disagreement.h"
#include "runtime/comm/gather_records.h"
#include "runtime/comm/group_internals.h"

namespace lockstep {
namespace {

// The group that one rank asks for.
struct Request {
  std::string call = {};   // "split", "new_group"
  std::string ranks = {};  // of new_group: the list, as a message has it
  int color = kNoColor;    // of split
  int key = 0;             // of split
  std::string name = {};   // of the group that this rank is to be in
};

constexpr auto kFields = [](auto& request, auto& fields) {
  fields("call", request.call);
  fields("ranks", request.ranks);
  fields("color", request.color);
  fields("key", request.key);
  fields.lines("name", request.name);
};

std::vector<Request> exchanged(ProcessGroup& group, const Request& own) {
  const auto all = comm::within_call(own.call, [&] {
    return all_gather_records(group, std::vector{own}, kFields, fmt::format("{}: the request", own.call));
  });
  std::vector<Request> requests;
  for (const std::vector<Request>& of_rank : all) requests.insert(requests.end(), of_rank.begin(), of_rank.end());
  return requests;
}

std::string asked_for(const Request& request) {
  return request.call == "split" ? request.call : fmt::format("{} of {}", request.call, request.ranks);
}

// Every rank calls this with the same requests, so all of them find the same difference, or none does.
void require_same_calls(ProcessGroup& group, const std::vector<Request>& requests, int call) {
  for (std::size_t r = 1; r < requests.size(); ++r) {
    if (requests[r].call == requests[0].call && requests[r].ranks == requests[0].ranks) continue;
    comm::throw_disagreement(
        group, fmt::format("groups {} of this group: {} calls {}, but {} calls {}; every rank makes the same groups in "
                           "the same order, also those that it will not be in",
                           call, group.roster()[0].describe(), asked_for(requests[0]), group.roster()[r].describe(),
                           asked_for(requests[r])));
  }
}

void require_one_name(ProcessGroup& group, const std::vector<Request>& requests, const std::vector<int>& ranks) {
  const auto name_of = [&](int rank) { return requests[static_cast<std::size_t>(rank)].name; };
  const auto who = [&](int rank) { return group.roster()[static_cast<std::size_t>(rank)].describe(); };
  for (const int rank : ranks) {
    if (name_of(rank) == name_of(ranks[0])) continue;
    comm::throw_disagreement(
        group, fmt::format("{}: {} names the group '{}', but {} names it '{}'; give one name on all of its ranks",
                           requests[0].call, who(ranks[0]), printable(name_of(ranks[0])), who(rank),
                           printable(name_of(rank))));
  }
}

[[noreturn]] void refuse(const ProcessGroup& group, std::string_view call, const std::string& what) {
  throw InvalidArgument(
      fmt::format("{} on rank {} of {} ({}): {}", call, group.rank(), group.size(), group.backend(), what));
}

void check_options(const ProcessGroup& group, std::string_view call, const SubgroupOptions& options) {
  if (!options.timeout || options.timeout->count() > 0) return;
  refuse(group, call, "a timeout of 0 or less; give one above 0, or none for this group's");
}

void check_list(const ProcessGroup& group, const std::vector<int>& ranks) {
  if (ranks.empty()) refuse(group, "new_group", "an empty list of ranks; name those that are to be in it");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= group.size()) {
      refuse(group, "new_group",
             fmt::format("{} is not a rank of this group; list ranks from 0 to {}", ranks[i], group.size() - 1));
    }
    if (std::find(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(i), ranks[i]) !=
        ranks.begin() + static_cast<std::ptrdiff_t>(i)) {
      refuse(group, "new_group", fmt::format("rank {} is listed twice; list each rank once", ranks[i]));
    }
  }
}

// "ranks 2, 0 and 1": in the order of the list, which is that of the new group.
std::string listed(const std::vector<int>& ranks) { return rendezvous::describe_ranks(ranks); }

// By color: its ranks, by (key, rank).
std::map<int, std::vector<int>> by_color(const std::vector<Request>& requests) {
  std::map<int, std::vector<std::tuple<int, int>>> keyed;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    if (requests[r].color >= 0) keyed[requests[r].color].emplace_back(requests[r].key, static_cast<int>(r));
  }
  std::map<int, std::vector<int>> groups;
  for (auto& [color, ranks] : keyed) {
    std::sort(ranks.begin(), ranks.end());
    for (const auto& [key, rank] : ranks) groups[color].push_back(rank);
  }
  return groups;
}

}  // namespace

std::shared_ptr<ProcessGroup> ProcessGroup::made_of(const std::vector<int>& ranks, const std::string& own_name,
                                                    const std::string& key, const SubgroupOptions& options) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank());
  if (place == ranks.end()) return nullptr;
  std::string full_name = options.name.empty() ? own_name : options.name;
  if (options.name.empty() && !name().empty()) full_name = fmt::format("{} / {}", name(), own_name);
  return internals().make_subgroup({.ranks = ranks,
                                    .rank = static_cast<int>(place - ranks.begin()),
                                    .name = std::move(full_name),
                                    .store_prefix = "groups/" + key,
                                    .timeout = options.timeout.value_or(timeout())});
}

std::shared_ptr<ProcessGroup> ProcessGroup::split(int color, int key, const SubgroupOptions& options) {
  check_options(*this, "split", options);
  const auto requests =
      exchanged(*this, {.call = "split", .color = std::max(color, kNoColor), .key = key, .name = options.name});
  const int call = internals().next_subgroup_call();
  require_same_calls(*this, requests, call);
  const auto groups = by_color(requests);
  for (const auto& [its_color, ranks] : groups) require_one_name(*this, requests, ranks);
  if (color < 0) return nullptr;
  return made_of(groups.at(color), fmt::format("split {}, color {}", call, color), fmt::format("{}/{}", call, color),
                 options);
}

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks, const SubgroupOptions& options) {
  check_options(*this, "new_group", options);
  check_list(*this, ranks);
  const auto requests = exchanged(*this, {.call = "new_group", .ranks = listed(ranks), .name = options.name});
  const int call = internals().next_subgroup_call();
  require_same_calls(*this, requests, call);
  require_one_name(*this, requests, ranks);
  return made_of(ranks, fmt::format("group {}", call), std::to_string(call), options);
}

HostGroups ProcessGroup::split_by_host() {
  const std::vector<int> beside = rendezvous::ranks_beside(roster(), rank());
  const int place = static_cast<int>(std::find(beside.begin(), beside.end(), rank()) - beside.begin());
  const std::string host = printable(roster()[static_cast<std::size_t>(rank())].host);
  HostGroups groups;
  groups.host = split(rendezvous::host_index(roster(), rank()), 0, {.name = "host " + host});
  groups.rail = split(place, 0, {.name = fmt::format("rail {}", place)});
  return groups;
}

}  // namespace lockstep
