// SPDX-License-Identifier: Apache-2.0
// A reduce_scatter by segments, between hosts whose ranks share memory: per result row, each other host sends one
// partial sum, whatever its number of ranks.
//
// A window holds a piece of every row of a rank's input. The ranks of a rail add up the rows that they carry over the
// ranks of their host, and send the sums of another host's rows to the rank of their rail there. That rank adds up the
// hosts and puts the result where the row's owner has its piece. The sums are those of an all-reduce
// (all_reduce_steps.h), bit for bit.
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
  // The direction of a piece's sums, out to or in from `host`, for the row of that or this host's `owner`.
  enum class Way { out, in };
  std::byte* sums_of(const Segment& segment, Way way, std::size_t host, std::size_t owner);
  std::size_t sum_bytes(const Segment& segment) const;

  const DType sums_;  // the type in which a host's sums cross
  std::vector<ScratchBuffer>& scratch_;
};

}  // namespace lockstep::wire
