// SPDX-License-Identifier: Apache-2.0
// How the ranks of a roster agree on something through a store: each says a text, one judges them all, all hear the
// verdict or who did not come.
//
// The last rank to come judges, so that nobody waits for the judge and n ranks ask for n keys, not n * n. The rank
// whose deadline passes first names the missing ones to all. The first verdict stays: a rank that comes after it hears
// the same. A store that a failure of the group closes (Store::stop_waiting) ends each wait; `check` then says why.
//
// Threads: one. A name serves once in a store.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/rendezvous/roster.h"
#include "lockstep/store/store.h"
#include "runtime/base/internal_api.h"

namespace lockstep::rendezvous {

struct ConsensusOptions {
  std::string name;    // of its keys: "NAME/RANK", "NAME/count", "NAME/verdict"
  std::string what;    // for messages, with its subject: "backend 'shm', setting up shared memory"
  std::string remedy;  // against missing ranks
  // Called every 200 ms of a wait; ends it by throwing. Empty: nothing but the store ends it.
  std::function<void()> check = {};
};

class LOCKSTEP_INTERNAL_API Consensus {
 public:
  // All texts, by rank, and the verdict on them. Called on the rank that comes last. CorruptData is every rank's.
  using Judge = std::function<std::string(std::span<const std::string>)>;

  // `store` and `roster` outlive it.
  Consensus(store::Store& store, const Roster& roster, int rank, ConsensusOptions options)
      : store_(store), roster_(roster), rank_(rank), options_(std::move(options)) {}

  // contribute(), then await_verdict().
  std::string decide(std::string_view own, const Judge& judge, const Deadline& deadline);
  // For a rank that waits for nobody.
  void contribute(std::string_view own, const Judge& judge, const Deadline& deadline);
  // The verdict. Throws Timeout with the ranks that did not come, CorruptData, and what `check` and the store throw.
  std::string await_verdict(const Deadline& deadline);
  // All texts, by rank, on every rank: for texts too long to be in one verdict. Throws as await_verdict(), but for one
  // thing: a rank that makes them complete after others gave up gets them all, and meets the others' failure at its
  // next call.
  std::vector<std::string> gather(std::string_view own, const Deadline& deadline);
  // True if `rank` has said its text.
  bool has_contributed(int rank) const;

 private:
  std::string key(int rank) const { return options_.name + "/" + std::to_string(rank); }
  std::string verdict_key() const { return options_.name + "/verdict"; }
  std::vector<std::string> keys() const;
  // Returns the result of `wait`, which takes a deadline and may throw Timeout.
  template <typename Wait>
  auto wait_checking(const Deadline& deadline, const Wait& wait) const;
  // Throws Timeout, or what an earlier verdict says; returns its text if that says that all came.
  std::string report_missing(const Deadline& deadline);

  store::Store& store_;
  const Roster& roster_;
  const int rank_;
  const ConsensusOptions options_;
};

}  // namespace lockstep::rendezvous
