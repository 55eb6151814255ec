// SPDX-License-Identifier: Apache-2.0
// Which ranks have announced which collective, with their records: compared before any data moves.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/rendezvous/roster.h"
#include "runtime/comm/transfer.h"
#include "runtime/comm/wire/frame.h"

namespace lockstep::wire {

// A rank's announcement of a collective.
struct Announcement {
  comm::OpRecord record;
  std::vector<std::byte> payload;  // its data, if fits_inline(); else its place in its host's memory, if there is one
  std::chrono::steady_clock::time_point at = {};  // when it came to this host
};
// By rank.
using Arrivals = std::vector<std::optional<Announcement>>;

// The rank that came last, by when its announcement was on this host, and how long after the first one.
struct LastArrival {
  int rank = 0;
  std::chrono::nanoseconds behind{0};
};
// All have arrived.
LastArrival last_of(const Arrivals& arrivals);

// True if what each rank gives to the collective fits beside its record: what is there on every rank, so that all see
// it alike.
bool fits_inline(const comm::CollectiveArgs& args);

// Compares the parts of all ranks in collective `sequence`, of which `args` is this rank's: returns their words,
// combined, or why it can't be done, as the text of a Mismatch. All have arrived.
struct Comparison {
  comm::InlineScalars words{};
  std::optional<std::string> mismatch = {};
};
Comparison compare(const comm::CollectiveArgs& args, std::uint64_t sequence, const Arrivals& arrivals,
                   const rendezvous::Roster& roster);

// Collectives are numbered from 1; each rank comes to them in order. Threads: its owner's lock guards it.
class ArrivalTable {
 public:
  explicit ArrivalTable(std::size_t ranks) : heard_(ranks) {}

  // The collective that `rank` comes to next.
  std::uint64_t next_of(int rank) const { return heard_[static_cast<std::size_t>(rank)] + 1; }
  // It has come to next_of(rank).
  void note(int rank, Announcement announcement);
  // The last collective that take() has given.
  std::uint64_t taken() const { return taken_; }
  // Those of the one after it, once all ranks have come to it.
  std::optional<Arrivals> take();
  // The ranks that have not announced collective `sequence`.
  std::vector<int> absent(std::uint64_t sequence) const;

 private:
  std::uint64_t taken_ = 0;
  std::deque<Arrivals> arrivals_;     // of collectives taken_ + 1 and later
  std::vector<std::uint64_t> heard_;  // by rank: the last that it has come to
};

}  // namespace lockstep::wire
