// SPDX-License-Identifier: Apache-2.0
// An all_gather by segments, between hosts whose ranks share memory: each row crosses the cable of each other host
// once, whatever its number of ranks.
//
// A window holds a piece of every rank's row. Each rank puts its own piece into its window. The ranks of a rail send
// the rows of their host that they carry to each other host, and copy the rows that arrive to the other ranks of their
// host.
#pragma once

#include "runtime/comm/wire/segment_steps.h"

namespace lockstep::wire {

class AllGatherSteps final : public SegmentSteps {
 public:
  AllGatherSteps(const comm::CollectiveArgs& args, const StepContext& context)
      : SegmentSteps(args, context, Route::windows) {}

  std::size_t most_elements() const override { return most_of_rows(); }
  void begin(Segment& segment) override;
  void fill(const Segment& segment) override;
  void send(Segment& segment) override;
  void exchange_results(Segment&) override {}
  void broadcast_to_host(const Segment& segment) override;
  void copy_out(const Segment& segment) override;
};

}  // namespace lockstep::wire
