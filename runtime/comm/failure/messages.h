// SPDX-License-Identifier: Apache-2.0
// The texts by which groups of every backend fail alike. `who` names a rank: "rank 2 (host node7, pid 4711)".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "runtime/base/internal_api.h"

namespace lockstep::comm {

// The ranks that hold up something that a rank waits for, and the sentence that says so.
struct Stragglers {
  std::vector<int> ranks = {};
  std::string text = {};

  // `name` joins the list that the text ends in.
  void add(int rank, const std::string& name) {
    if (!ranks.empty()) text += ", ";
    text += name;
    ranks.push_back(rank);
  }
  // The rank that a timeout is to name; -1: no single one.
  int only() const { return ranks.size() == 1 ? ranks.front() : -1; }
};

// "rank 2 (...) left after collective 41".
std::string left_text(const std::string& gone, std::uint64_t last);
// left_text(), and that `who` is in `collective`, which needs every rank.
LOCKSTEP_INTERNAL_API std::string left_early_text(const std::string& gone, std::uint64_t last, const std::string& who,
                                                  const std::string& collective);
// left_text(), and that `who` is in a message with that rank.
LOCKSTEP_INTERNAL_API std::string left_unanswered_text(const std::string& gone, std::uint64_t last,
                                                       const std::string& who, const std::string& message);
// `who` waited for `operation`; `missing` names the ranks or the thing that it waits for.
LOCKSTEP_INTERNAL_API std::string timeout_text(const std::string& operation, const std::string& who,
                                               const Deadline& deadline, const std::string& missing);
// `who` destroyed its group before that many collectives and messages were done.
LOCKSTEP_INTERNAL_API std::string destroyed_text(const std::string& who, std::uint64_t collectives,
                                                 std::size_t messages);
// An exception of the program's own unwinds the group of `who`, whose last collective was `last`.
LOCKSTEP_INTERNAL_API std::string unwound_text(const std::string& who, std::uint64_t last);
// InvalidArgument: a work of a group that `who` has destroyed.
[[noreturn]] LOCKSTEP_INTERNAL_API void throw_closed(const std::string& who);

}  // namespace lockstep::comm
