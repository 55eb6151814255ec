// SPDX-License-Identifier: Apache-2.0
// BroadcastSteps runs a broadcast in segments, between hosts whose ranks share memory. The broadcast data is sent to
// each host only once, however many ranks the host has.
//
// The root copies a segment into its window of shared memory. Each rank of the root's host that has a range of the
// segment then sends the range to the other hosts. Each other host gets one part of a range and passes the part on to
// the remaining hosts, so the root's host sends the range only once. The root's host does not divide a small range, but
// sends the whole range to every other host.
#pragma once

#include "runtime/comm/wire/segment_steps.h"

namespace lockstep::wire {

class BroadcastSteps final : public SegmentSteps {
 public:
  BroadcastSteps(const comm::CollectiveArgs& args, const StepContext& context);

  std::size_t most_elements() const override { return slot_bytes() / args_.element_bytes(); }
  void begin(Segment& segment) override;
  void fill(const Segment& segment) override;
  void send(Segment& segment) override;
  void exchange_results(Segment& segment) override;
  void broadcast_to_host(const Segment& segment) override;
  void copy_out(const Segment& segment) override;

 private:
  bool goes_whole(const Segment& segment) const;
  // Returns the offset and the length, in bytes, of the part of the range that the root's host sends to `host`.
  comm::Chunk part_of(const Segment& segment, std::size_t host) const;
  std::byte* user_data(const Segment& segment) const;

  std::size_t root_host_ = 0;
  std::size_t root_local_ = 0;
};

}  // namespace lockstep::wire
