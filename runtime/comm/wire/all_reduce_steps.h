// SPDX-License-Identifier: Apache-2.0
// AllReduceSteps reduces data by segments. On each host, every range of a segment belongs to one rank, which adds up
// the range over all ranks of the host. The ranks that added up the same range on different hosts then exchange their
// sums. Each rank that added up a range then writes the result into the memory of all ranks of its host.
//
// Values are added in a tree over the ranks of each host, and the hosts' sums in a tree over hosts. If ranks are
// numbered host by host, and all hosts have an equal power of two of ranks, an all-reduce gives the same bits as one
// tree over all ranks (comm/reduction.h). If sums in the data's type would be rounded or divided twice, the hosts send
// their sums in the type in which values are added up (float32 for 16-bit floats). The hosts send results in the data's
// type, in a second trip. If ranks share no memory, every rank acts as a host with one rank and sends its data instead
// of sums.
//
// A reduce also uses AllReduceSteps, with windows of shared memory; only the root copies the result out.
#pragma once

#include "runtime/comm/wire/arrival_table.h"
#include "runtime/comm/wire/movement.h"
#include "runtime/comm/wire/segment_steps.h"

namespace lockstep::wire {

// Encodes `offset` as the bytes that the announcement of an all-reduce carries to the other ranks.
std::vector<std::byte> written(const comm::ArenaOffset& offset);

class AllReduceSteps final : public SegmentSteps {
 public:
  // `scratch` has a buffer for each segment number modulo kSegmentDepth; the caller keeps these buffers from one
  // reduction to the next.
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

  // Returns whether a transfer of `bytes` bytes is eager (BasicPiece::is_eager). The sender and the receiver of a
  // transfer get the same result from is_eager().
  bool is_eager(std::size_t bytes) const { return bytes <= most_eager_; }
  // Returns true if this rank sends its whole range of `segment` to every other host in one network trip.
  bool goes_whole(const Segment& segment) const;
  comm::Chunk part_of(const Segment& segment, std::size_t host) const;
  // Returns true if a host's sums have the data's type, so that the sums can overwrite a rank's data.
  bool sums_in_place() const { return sums_ == args_.record.dtype; }
  // Returns the address at which this rank stores the sum that `host` sends: the sum of one part of this rank's range,
  // or of the whole range if goes_whole() is true.
  std::byte* place_of(const Segment& segment, std::size_t host);
  // Returns the address at which this host's sum of this rank's range lies.
  std::byte* own_sums(const Segment& segment);
  std::byte* user_data(const Segment& segment) const;

  const std::vector<std::byte*> arenas_;  // by place on the host; empty if the route is through windows
  const DType sums_;                      // the type in which a host's sums travel
  const std::size_t most_eager_;          // the most bytes of an eager transfer
  std::vector<ScratchBuffer>& scratch_;
};

}  // namespace lockstep::wire
