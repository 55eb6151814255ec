// SPDX-License-Identifier: Apache-2.0
// ReduceScatterSteps runs a reduce_scatter in segments, between hosts whose ranks share memory. For each row of the
// result, each other host sends only one partial sum, however many ranks the sending host has.
//
// Each rank has a window of shared memory, which holds a piece of every row of the rank's input. On each host, every
// row is assigned to one rank, which adds up the row over all ranks of its host. The assigned rank then sends the sum
// of the row to the rank with the same place on the host of the row's owner. The rank that receives the sums of a row
// adds up the sums of all hosts, and writes the result into the window of the row's owner. The result of a
// reduce_scatter has the same bits as the result of an all-reduce (all_reduce_steps.h).
#pragma once

#include <vector>

#include "runtime/comm/wire/movement.h"
#include "runtime/comm/wire/segment_steps.h"

namespace lockstep::wire {

class ReduceScatterSteps final : public SegmentSteps {
 public:
  // `scratch` has a buffer for each segment number modulo kSegmentDepth; the caller keeps these buffers from one
  // reduction to the next.
  ReduceScatterSteps(const comm::CollectiveArgs& args, const StepContext& context, std::vector<ScratchBuffer>& scratch);

  std::size_t most_elements() const override { return most_of_rows(); }
  void begin(Segment& segment) override;
  void fill(const Segment& segment) override;
  void send(Segment& segment) override;
  void exchange_results(Segment& segment) override;
  void broadcast_to_host(const Segment&) override {}
  void copy_out(const Segment& segment) override;

 private:
  // The direction of a piece's sums. Way::out is for sums that this rank sends to `host`, for a row of that host's rank
  // `owner`. Way::in is for sums that come from `host`, for a row of this host's rank `owner`.
  enum class Way { out, in };
  std::byte* sums_of(const Segment& segment, Way way, std::size_t host, std::size_t owner);
  std::size_t sum_bytes(const Segment& segment) const;

  const DType sums_;  // the type in which a host's sums travel
  std::vector<ScratchBuffer>& scratch_;
};

}  // namespace lockstep::wire
