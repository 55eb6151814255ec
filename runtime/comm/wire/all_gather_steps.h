// SPDX-License-Identifier: Apache-2.0
// An all_gather by segments, between hosts whose ranks share memory: each row crosses the cable of each other host
// once, whatever its number of ranks.
//
// A window holds a piece of every rank's row. Each rank puts its own into its window; the ranks of a lane send the rows
// of their host that they carry to each other host, and copy what comes to the ranks of their own.
#pragma once

#include "runtime/comm/wire/segment_steps.h"

namespace lockstep::wire {

class AllGatherSteps final : public SegmentSteps {
 public:
  AllGatherSteps(const comm::Task& task, const Place& place) : SegmentSteps(task, place, Route::windows) {}

  // False if a window's pieces of rows would be too small to be sent one by one.
  static bool serves(const comm::Task& task, const Hosts& hosts);

  std::size_t most_elements() const override {
    return slot_bytes() / (task_.element_bytes() * static_cast<std::size_t>(task_.size));
  }
  void begin(Segment& segment) override;
  void fill(const Segment& segment) override;
  void send(Segment& segment) override;
  void hand_on(Segment&) override {}
  void spread(const Segment& segment) override;
  void take(const Segment& segment) override;

 private:
  std::size_t piece_bytes(const Segment& segment) const { return segment.chunk.length * task_.element_bytes(); }
  // Calls what(owner, place) for the rows of a host that this rank carries: of which rank, and where in a window.
  template <typename What>
  void for_carried_rows(const Segment& segment, std::size_t host, What what) const;
};

}  // namespace lockstep::wire
