// SPDX-License-Identifier: Apache-2.0
// ArrivalTable records which collectives each rank has announced. Before any data of a collective moves, compare()
// compares all ranks' announcements of the collective.
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

// An Announcement is one rank's notice to the other ranks that the rank starts a collective.
struct Announcement {
  comm::OpRecord record;
  // The payload is the rank's data if fits_inline() is true for the collective. If an all-reduce has more data, and the
  // ranks of a host share memory, the payload is the place of the rank's data in the shared memory.
  std::vector<std::byte> payload;
  std::chrono::steady_clock::time_point at = {};  // the time when the announcement arrived on this host
};
// Arrivals holds all ranks' announcements of one collective, indexed by rank.
using Arrivals = std::vector<std::optional<Announcement>>;

// LastArrival holds the rank whose announcement of a collective arrived last on this host, and the delay between the
// first and the last announcement of the collective.
struct LastArrival {
  int rank = 0;
  std::chrono::nanoseconds behind{0};
};
// Returns the last arrival. REQUIRES: every rank's announcement is in `arrivals`.
LastArrival last_of(const Arrivals& arrivals);

// Returns whether each rank's data fits into the frame that announces the collective. The result of fits_inline()
// depends only on values that are equal on all ranks, so all ranks get the same result.
bool fits_inline(const comm::CollectiveArgs& args);

// A Comparison holds the ranks' weights and notes (OpRecord::words), combined over all ranks, or the text of the
// Mismatch with which the collective fails.
struct Comparison {
  comm::InlineScalars words{};
  std::optional<std::string> mismatch = {};
};
// Compares all ranks' announcements of collective `sequence`, for which `args` are this rank's arguments. REQUIRES:
// every rank's announcement is in `arrivals`.
Comparison compare(const comm::CollectiveArgs& args, std::uint64_t sequence, const Arrivals& arrivals,
                   const rendezvous::Roster& roster);

// ArrivalTable holds the announcements of the collectives that this rank has not started yet. Collectives are
// numbered from 1, and each rank announces its collectives in the order of their numbers. Threads: the owner's lock
// guards the table.
class ArrivalTable {
 public:
  explicit ArrivalTable(std::size_t ranks) : heard_(ranks) {}

  // Returns the number of the collective that `rank` announces next.
  std::uint64_t next_of(int rank) const { return heard_[static_cast<std::size_t>(rank)] + 1; }
  // Adds the announcement of collective next_of(rank) by `rank`.
  void note(int rank, Announcement announcement);
  // Returns the number of the last collective whose announcements take() has returned.
  std::uint64_t taken() const { return taken_; }
  // Removes and returns the announcements of collective taken() + 1, or returns nullopt while a rank's announcement
  // is missing.
  std::optional<Arrivals> take();
  // Returns the ranks that have not announced collective `sequence`.
  std::vector<int> absent(std::uint64_t sequence) const;

 private:
  std::uint64_t taken_ = 0;
  std::deque<Arrivals> arrivals_;     // the announcements of collectives taken_ + 1 and later
  std::vector<std::uint64_t> heard_;  // by rank: the number of the last collective that the rank has announced
};

}  // namespace lockstep::wire
