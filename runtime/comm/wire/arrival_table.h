// SPDX-License-Identifier: Apache-2.0
// Which ranks have announced which collective, with their records, which are compared before any data moves.
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
  // The rank's data, if fits_inline(); otherwise its place in its host's memory, if there is one.
  std::vector<std::byte> payload;
  std::chrono::steady_clock::time_point at = {};  // the time when it arrived on this host
};
// The announcements of one collective, by rank.
using Arrivals = std::vector<std::optional<Announcement>>;

// The rank whose announcement arrived last on this host, and how long after the first one.
struct LastArrival {
  int rank = 0;
  std::chrono::nanoseconds behind{0};
};
// The last arrival, after all have arrived.
LastArrival last_of(const Arrivals& arrivals);

// Whether each rank's data fits into its announcement. The answer depends on values that are equal on all ranks, so all
// ranks agree.
bool fits_inline(const comm::CollectiveArgs& args);

// The result of comparing all ranks' parts in collective `sequence`, of which `args` is this rank's, after all have
// arrived: their words, combined; or the reason why it can't be done, as the text of a Mismatch.
struct Comparison {
  comm::InlineScalars words{};
  std::optional<std::string> mismatch = {};
};
Comparison compare(const comm::CollectiveArgs& args, std::uint64_t sequence, const Arrivals& arrivals,
                   const rendezvous::Roster& roster);

// The announcements of the next collectives, which are numbered from 1; each rank announces them in order. Threads: the
// owner's lock guards it.
class ArrivalTable {
 public:
  explicit ArrivalTable(std::size_t ranks) : heard_(ranks) {}

  // The number of the collective that `rank` announces next.
  std::uint64_t next_of(int rank) const { return heard_[static_cast<std::size_t>(rank)] + 1; }
  // Notes that the rank has announced next_of(rank).
  void note(int rank, Announcement announcement);
  // The last collective that take() has returned.
  std::uint64_t taken() const { return taken_; }
  // The announcements of the collective after taken(), once all ranks have made theirs.
  std::optional<Arrivals> take();
  // The ranks that have not announced collective `sequence`.
  std::vector<int> absent(std::uint64_t sequence) const;

 private:
  std::uint64_t taken_ = 0;
  std::deque<Arrivals> arrivals_;     // of collectives taken_ + 1 and later
  std::vector<std::uint64_t> heard_;  // by rank: the last collective that it has announced
};

}  // namespace lockstep::wire
