// SPDX-License-Identifier: Apache-2.0
// ArrivalTable records which ranks have announced which collective. compare() compares the announcements of a
// collective before any data moves.
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

// An Announcement says that a rank starts a collective.
struct Announcement {
  comm::OpRecord record;
  // The rank's data if fits_inline(). For a larger all-reduce on a host with shared memory, the payload is the data's
  // place in that memory.
  std::vector<std::byte> payload;
  std::chrono::steady_clock::time_point at = {};  // the time when the announcement arrived on this host
};
// Arrivals holds the announcements of one collective, indexed by rank.
using Arrivals = std::vector<std::optional<Announcement>>;

// LastArrival names the rank whose announcement arrived last on this host, and its delay after the first announcement.
struct LastArrival {
  int rank = 0;
  std::chrono::nanoseconds behind{0};
};
// Returns the last arrival. REQUIRES: the announcements of all ranks have arrived.
LastArrival last_of(const Arrivals& arrivals);

// Returns whether each rank's data fits into its announcement. The answer depends on values that are equal on all
// ranks, so all ranks agree.
bool fits_inline(const comm::CollectiveArgs& args);

// A Comparison holds the combined words of all ranks, or the text of a Mismatch that says why the collective fails.
struct Comparison {
  comm::InlineScalars words{};
  std::optional<std::string> mismatch = {};
};
// Compares the announcements of collective `sequence`, for which `args` are this rank's arguments. REQUIRES: the
// announcements of all ranks have arrived.
Comparison compare(const comm::CollectiveArgs& args, std::uint64_t sequence, const Arrivals& arrivals,
                   const rendezvous::Roster& roster);

// ArrivalTable holds the announcements of the next collectives. Collectives are numbered from 1, and each rank
// announces its collectives in order. Threads: the owner's lock guards the table.
class ArrivalTable {
 public:
  explicit ArrivalTable(std::size_t ranks) : heard_(ranks) {}

  // Returns the number of the collective that `rank` announces next.
  std::uint64_t next_of(int rank) const { return heard_[static_cast<std::size_t>(rank)] + 1; }
  // Notes that `rank` has announced collective next_of(rank).
  void note(int rank, Announcement announcement);
  // Returns the number of the last collective whose announcements take() has returned.
  std::uint64_t taken() const { return taken_; }
  // Returns the announcements of the collective after taken(), or nullopt while the announcement of a rank is missing.
  std::optional<Arrivals> take();
  // Returns the ranks that have not announced collective `sequence`.
  std::vector<int> absent(std::uint64_t sequence) const;

 private:
  std::uint64_t taken_ = 0;
  std::deque<Arrivals> arrivals_;     // the announcements of collectives taken_ + 1 and later
  std::vector<std::uint64_t> heard_;  // by rank: the number of the last collective that the rank has announced
};

}  // namespace lockstep::wire
