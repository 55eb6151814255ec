// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/published_roster.h"

#include <fmt/format.h>

#include <climits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"

// "lockstep roster 1", "ranks 4", "hosts 2", three lines for each host, and a line for each rank: its pid, then what
// the line before doesn't say already, "h1" its host and "l0" its local rank. A rank is on the host of the one before
// it, and one further there.

namespace lockstep::rendezvous {
namespace {

// The values of the next rank unless it states others.
struct Expected {
  int host = 0;
  int local_rank = 0;

  void pass(const Member& member) { local_rank = member.local_rank < 0 ? -1 : member.local_rank + 1; }
};

// A number from `low` up.
std::optional<int> number(std::string_view text, int low) {
  const auto value = parse_int(text);
  if (!value || *value < low || *value > INT_MAX) return std::nullopt;
  return static_cast<int>(*value);
}

bool read_rank(std::string_view line, std::span<const Member> hosts, Expected& expected, Member& member) {
  const auto pid = number(take_word(line), 0);
  if (!pid) return false;
  while (!line.empty()) {
    const std::string_view word = take_word(line);
    const auto value = number(word.substr(std::min<std::size_t>(1, word.size())), -1);
    if (!value) return false;
    if (word.front() == 'h') {
      expected.host = *value;
    } else if (word.front() == 'l') {
      expected.local_rank = *value;
    } else {
      return false;
    }
  }
  if (expected.host < 0 || static_cast<std::size_t>(expected.host) >= hosts.size()) return false;
  const int rank = member.rank;
  member = hosts[static_cast<std::size_t>(expected.host)];
  member.rank = rank;
  member.pid = *pid;
  member.local_rank = expected.local_rank;
  expected.pass(member);
  return true;
}

constexpr auto kHostFields = [](auto& host, auto& fields) {
  fields("host", host.host);
  fields("boot_id", host.boot_id);
  fields("network", host.network);
};

std::optional<Roster> read(std::string_view text) {
  RecordReader fields(text);
  int ranks = 0;
  int count = 0;
  fields.kind("roster 1");
  fields("ranks", ranks, 1);
  fields("hosts", count, 1);
  // No more of either than there are bytes: nothing is allocated by a number that may be wrong.
  if (!fields.good() || std::cmp_greater(ranks, text.size()) || std::cmp_greater(count, text.size())) {
    return std::nullopt;
  }
  std::vector<Member> hosts(static_cast<std::size_t>(count));
  for (Member& host : hosts) kHostFields(host, fields);
  Roster roster(static_cast<std::size_t>(ranks));
  Expected expected;
  for (std::size_t i = 0; i < roster.size(); ++i) {
    roster[i].rank = static_cast<int>(i);
    const auto line = fields.take("p");
    if (!line || !read_rank(*line, hosts, expected, roster[i])) return std::nullopt;
  }
  if (!fields.at_end()) return std::nullopt;
  return roster;
}

}  // namespace

std::vector<std::string> publish(const Roster& roster, std::size_t most) {
  std::map<std::tuple<std::string_view, std::string_view, std::string_view>, int> known;
  std::vector<int> host_of;
  std::vector<const Member*> hosts;
  for (const Member& member : roster) {
    const auto [host, is_new] = known.try_emplace({member.host, member.boot_id, member.network}, known.size());
    if (is_new) hosts.push_back(&member);
    host_of.push_back(host->second);
  }
  RecordWriter fields;
  fields.kind("roster 1");
  fields("ranks", roster.size());
  fields("hosts", hosts.size());
  for (const Member* host : hosts) kHostFields(*host, fields);
  Expected expected;
  for (std::size_t i = 0; i < roster.size(); ++i) {
    std::string line = fmt::format("{}", roster[i].pid);
    if (host_of[i] != expected.host) line += fmt::format(" h{}", host_of[i]);
    if (roster[i].local_rank != expected.local_rank) line += fmt::format(" l{}", roster[i].local_rank);
    fields("p", line);
    expected.host = host_of[i];
    expected.pass(roster[i]);
  }
  const std::string text = fields.take();
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size(); begin += most) parts.push_back(text.substr(begin, most));
  return parts;
}

Roster read_published(std::span<const std::string> parts, std::string_view where) {
  std::string text;
  for (const std::string& part : parts) text += part;
  auto roster = read(text);
  if (roster) return *std::move(roster);
  throw CorruptData(
      fmt::format("join: the {} bytes at store key '{}' are not a roster of this version; run the same build "
                  "of lockstep on all ranks",
                  text.size(), where));
}

}  // namespace lockstep::rendezvous
