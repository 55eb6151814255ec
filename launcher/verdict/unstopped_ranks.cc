// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/unstopped_ranks.h"

#include <fmt/format.h>

#include <map>
#include <vector>

#include "lockstep/rendezvous/roster.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

using membership::MemberState, membership::MemberView;

constexpr std::size_t kMostUnstopped = 8;

std::string place_of(const MemberView& member) {
  return member.position.sequence == 0 ? "no collective" : member.position.describe();
}

}  // namespace

std::string describe_unstopped(std::span<const RankFacts> unstopped, int world_size,
                               std::span<const MemberView> members) {
  std::map<int, const MemberView*> known;
  for (const MemberView& member : members) {
    if (member.info.world_size == world_size && member.state == MemberState::present) known[member.info.rank] = &member;
  }
  std::vector<std::string> parts;
  std::vector<const MemberView*> present;
  const MemberView* front = nullptr;
  for (const RankFacts& rank : unstopped) {
    const auto found = known.find(rank.rank);
    if (found == known.end()) {
      parts.push_back(
          fmt::format("rank {} (host {}, pid {}) is in no group of all ranks", rank.rank, rank.host, rank.pid));
      continue;
    }
    present.push_back(found->second);
    if (front == nullptr || present.back()->position.sequence > front->position.sequence) front = present.back();
  }
  std::vector<int> in_front;
  for (const MemberView* member : present) {
    if (member->position.sequence == front->position.sequence) {
      in_front.push_back(member->info.rank);
    } else {
      parts.push_back(fmt::format("{} holds the others up: the last that it started is {}", member->info.describe(),
                                  place_of(*member)));
    }
  }
  std::string text = joined(
      parts, [](const std::string& part) { return part; }, "; ", kMostUnstopped);
  if (in_front.empty()) return text;
  return fmt::format("{}{}{} {} started {}{}", text, text.empty() ? "" : "; ", rendezvous::describe_ranks(in_front),
                     in_front.size() == 1 ? "has" : "have", place_of(*front),
                     text.empty() ? ", and nothing later" : "");
}

}  // namespace lockstep::launcher
