// SPDX-License-Identifier: Apache-2.0
// Reductions by segments: each rank of a rail adds up its share of all memory on its host, exchanges the sums with its
// rail, and puts the result into all memory on its host.
//
// Sums follow the tree over a host's ranks, then the tree over the hosts. If every host has the same power of two of
// ranks, in the order of the hosts, that is the tree of comm/reduction.h over all ranks, and the bits are those of one
// host. Sums cross in the type in which values accumulate if their own type would be rounded or divided twice: 16-bit
// floats as float32. Results, which also take one trip, cross in their own type. If no memory is shared, every rank is
// a host of its own, and its data crosses.
//
// A reduction to one root takes the same steps, through windows: only the root copies the result out of its own.
#pragma once

#include "runtime/comm/wire/arrival_table.h"
#include "runtime/comm/wire/movement.h"
#include "runtime/comm/wire/segment_steps.h"

namespace lockstep::wire {

// An offset in an arena as it travels with the announcement of an all-reduce.
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

  // Whether a transfer is eager: the same at both ends.
  bool is_eager(std::size_t bytes) const { return bytes <= most_eager_; }
  // Whether all of a share crosses at once, to every host.
  bool goes_whole(const Segment& segment) const;
  comm::Chunk part_of(const Segment& segment, std::size_t host) const;
  // Whether a host's sums take the place of a rank's data.
  bool sums_in_place() const { return sums_ == args_.record.dtype; }
  // The place of another host's sum of this rank's part, or of the whole share; and the place of this host's sum of the
  // share.
  std::byte* place_of(const Segment& segment, std::size_t host);
  std::byte* own_sums(const Segment& segment);
  std::byte* user_data(const Segment& segment) const;

  const std::vector<std::byte*> arenas_;  // by place on the host; empty: through windows
  const DType sums_;                      // the type in which a host's sums cross
  const std::size_t most_eager_;          // bytes of a transfer
  std::vector<ScratchBuffer>& scratch_;
};

}  // namespace lockstep::wire
