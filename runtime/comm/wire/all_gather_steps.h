// SPDX-License-Identifier: Apache-2.0
// AllGatherSteps runs an all_gather by segments between hosts whose ranks share memory. Each row crosses each other
// host's cable once, however many ranks that host has.
//
// A rank's window holds a piece of every rank's row. Each rank copies its own piece into its window. Each rank of a
// rail sends the rows that it carries for its host to every other host. The rank also copies the rows that arrive into
// the windows of all ranks of its host.
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
