// SPDX-License-Identifier: Apache-2.0
// AllReduceSteps reduces data by segments. Each rank of a rail adds up its share over all ranks of its host and
// exchanges the sums with its rail. The rank then writes the result into the memory of all ranks of its host.
//
// The additions follow the tree over each host's ranks, then the tree over the hosts. If ranks are numbered host by
// host, with the same power of two of ranks on every host, the result has the bits of comm/reduction.h's tree over all
// ranks. Sums travel in the type in which values accumulate if the values' own type would be rounded or divided twice:
// 16-bit floats travel as float32. Results travel in a second trip, in the values' own type. If ranks share no memory,
// every rank counts as a host and sends its data instead of sums.
//
// A reduction to one root takes these steps through windows, and only the root copies the result out of its window.
#pragma once

#include "runtime/comm/wire/arrival_table.h"
#include "runtime/comm/wire/movement.h"
#include "runtime/comm/wire/segment_steps.h"

namespace lockstep::wire {

// Returns the bytes of `offset` as they travel with the announcement of an all-reduce.
std::vector<std::byte> written(const comm::ArenaOffset& offset);

class AllReduceSteps final : public SegmentSteps {
 public:
  // `scratch` is indexed by the number of the segment modulo kSegmentDepth, and kept from one reduction to the next.
  AllReduceSteps(const comm::CollectiveArgs& args, const StepContext& context, const Arrivals& arrivals,
                 std::vector<ScratchBuffer>& scratch);

  std::size_t most_elements() const override;
  void begin(Segment& segment) override;
  void fill(const Segment& segment) override;
  void send(Segment& segment) override;
  void exchange_results(Segment& segment) override;
  void broadcast_to_host(const Segment& segment) override;
  void copy_out(const Segment& segment) override;

 private:
  AllReduceSteps(const comm::CollectiveArgs& args, const StepContext& context, std::vector<std::byte*> arenas,
                 std::vector<ScratchBuffer>& scratch);
  void add_up_host(const Segment& segment);
  void add_up_hosts(const Segment& segment);

  // Returns whether a transfer of `bytes` is eager. Both ends get the same answer.
  bool is_eager(std::size_t bytes) const { return bytes <= most_eager_; }
  // Returns whether this rank sends its whole share to every other host at once.
  bool goes_whole(const Segment& segment) const;
  comm::Chunk part_of(const Segment& segment, std::size_t host) const;
  // Returns whether a host's sums have the data's type, so that the sums replace a rank's data in place.
  bool sums_in_place() const { return sums_ == args_.record.dtype; }
  // Returns the address for the sum that `host` sends of this rank's part, or of the whole share if goes_whole().
  std::byte* place_of(const Segment& segment, std::size_t host);
  // Returns the address of this host's sum of the share.
  std::byte* own_sums(const Segment& segment);
  std::byte* user_data(const Segment& segment) const;

  const std::vector<std::byte*> arenas_;  // by place on the host; empty if the route is through windows
  const DType sums_;                      // the type in which a host's sums travel
  const std::size_t most_eager_;          // the most bytes of an eager transfer
  std::vector<ScratchBuffer>& scratch_;
};

}  // namespace lockstep::wire
