// SPDX-License-Identifier: Apache-2.0
// SegmentCounts says how far the ranks of one host are with the segments of their collectives (segment_pipeline.h). The
// counts lie in memory that the ranks share.
//
// Each rank has two counts, which only that rank writes and which only grow. No rank is missed: a rank stores its own
// count and then reads the other ranks' counts, with sequentially consistent operations. So the rank that reaches a
// number last sees that all counts have reached the number, and rings the other ranks' bells. A rank that reads a count
// sees the writes that came before the count.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/comm/wire/doorbell.h"
#include "runtime/comm/wire/host_memory.h"

namespace lockstep::wire {

class SegmentCounts {
 public:
  static std::size_t bytes_for(const Hosts& hosts);
  // Formats this rank's counts. REQUIRES: `memory` is zero, and no rank of the host uses the counts yet.
  static void format(std::byte* memory, const Hosts& hosts);

  // `memory` and the bells of the host's ranks must outlive this object.
  SegmentCounts(std::byte* memory, const Hosts& hosts, std::vector<DoorbellButton> bells);

  // Notes that this rank's window has the rank's data of segment `number`.
  void fill(std::uint64_t number);
  bool all_filled(std::uint64_t number) const { return have_reached(&Words::filled, ranks_, number); }
  // Notes that this rank has put its share of all segments up to `number` into the memory of every rank of its host.
  // The rank does not access that memory any more.
  void finish(std::uint64_t number);
  bool all_finished(std::uint64_t number) const { return have_reached(&Words::finished, rails_, number); }
  // Returns the ranks, by place, that keep this host from the end of segment `number`. If the segment goes through
  // windows that are not all filled, the returned ranks have yet to fill their windows. Otherwise the returned ranks
  // have yet to finish. Any thread may call awaited().
  std::vector<std::size_t> awaited(std::uint64_t number, bool in_windows) const;

 private:
  struct alignas(64) Words {
    std::atomic<std::uint64_t> filled;
    std::atomic<std::uint64_t> finished;
  };
  using Count = std::atomic<std::uint64_t> Words::*;

  // Returns true if the counts of the first `places` ranks have reached `number`.
  bool have_reached(Count count, std::size_t places, std::uint64_t number) const;
  void reach(Count count, std::size_t places, std::uint64_t number);

  Words* const words_;  // the counts of the ranks, by place on the host
  const std::size_t ranks_;
  const std::size_t rails_;
  const std::size_t local_;
  const std::vector<DoorbellButton> bells_;
};

}  // namespace lockstep::wire
