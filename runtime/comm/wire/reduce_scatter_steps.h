// SPDX-License-Identifier: Apache-2.0
// ReduceScatterSteps runs a reduce_scatter by segments between hosts whose ranks share memory. For each row of the
// result, each other host sends one partial sum, however many ranks that host has.
//
// A rank's window holds a piece of every row of the rank's input. Each rank of a rail adds up the rows that it carries
// over the ranks of its host. The rank then sends the sums of another host's rows to the rail's rank on that host. The
// receiving rank adds up the sums of all hosts and writes the result into the window of the row's owner. The result has
// the bits of an all-reduce (all_reduce_steps.h).
#pragma once

#include <vector>

#include "runtime/comm/wire/movement.h"
#include "runtime/comm/wire/segment_steps.h"

namespace lockstep::wire {

class ReduceScatterSteps final : public SegmentSteps {
 public:
  // `scratch` is indexed by the number of the segment modulo kSegmentDepth, and kept from one reduction to the next.
  ReduceScatterSteps(const comm::CollectiveArgs& args, const StepContext& context, std::vector<ScratchBuffer>& scratch);

  std::size_t most_elements() const override { return most_of_rows(); }
  void begin(Segment& segment) override;
  void fill(const Segment& segment) override;
  void send(Segment& segment) override;
  void exchange_results(Segment& segment) override;
  void broadcast_to_host(const Segment&) override {}
  void copy_out(const Segment& segment) override;

 private:
  // The direction of a piece's sums. Sums `out` go to `host` for a row of that host's `owner`, and sums `in` come from
  // `host` for a row of this host's `owner`.
  enum class Way { out, in };
  std::byte* sums_of(const Segment& segment, Way way, std::size_t host, std::size_t owner);
  std::size_t sum_bytes(const Segment& segment) const;

  const DType sums_;  // the type in which a host's sums travel
  std::vector<ScratchBuffer>& scratch_;
};

}  // namespace lockstep::wire
