// SPDX-License-Identifier: Apache-2.0
// AllGatherSteps runs an all_gather in segments, between hosts whose ranks share memory. Each rank's row is sent to
// each other host only once, however many ranks the receiving host has.
//
// Each rank has a window of shared memory, which holds a piece of every rank's row. Each rank first copies the piece of
// its own row into its own window. Each host has an equal number of ranks that transfer rows between hosts
// (Hosts::rails). A rank that transfers rows sends the rows of some ranks of its host to every other host. A rank that
// transfers rows also copies the rows that it sends or receives into the windows of all ranks of its host.
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
