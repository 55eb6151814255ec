// SPDX-License-Identifier: Apache-2.0
// SegmentCounts tells the ranks of one host how far each rank has come with the segments of its collectives
// (segment_pipeline.h). The counts lie in memory that the ranks of the host share.
//
// Each rank has two counts, which only grow and which only that rank writes. A rank stores its own count and then reads
// the other ranks' counts, with sequentially consistent operations. The rank whose count reaches a number last
// therefore sees that all counts have reached the number, and rings the other ranks' doorbells. A rank that reads
// another rank's count also sees the memory writes that the other rank made before storing the count.
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
  // Formats this rank's counts. REQUIRES: all bytes of `memory` are zero, and no rank of the host uses the counts yet.
  static void format(std::byte* memory, const Hosts& hosts);

  // `memory` and the doorbells of the host's ranks must outlive this object.
  SegmentCounts(std::byte* memory, const Hosts& hosts, std::vector<DoorbellButton> bells);

  // Records that this rank's window now holds the rank's data of segment `number`.
  void fill(std::uint64_t number);
  bool all_filled(std::uint64_t number) const { return have_reached(&Words::filled, ranks_, number); }
  // Records that this rank has written its range of all segments up to `number` into the memory of every rank of its
  // host. After finish(), this rank no longer accesses other ranks' memory for segments up to `number`.
  void finish(std::uint64_t number);
  bool all_finished(std::uint64_t number) const { return have_reached(&Words::finished, rails_, number); }
  // Returns the places of the ranks that keep this host from ending segment `number`. If `in_windows` is true and some
  // ranks have not filled their windows, awaited() returns these ranks. If `in_windows` is false or all windows are
  // filled, awaited() returns the ranks that have not finished segment `number`. Any thread may call awaited().
  std::vector<std::size_t> awaited(std::uint64_t number, bool in_windows) const;

 private:
  struct alignas(64) Words {
    std::atomic<std::uint64_t> filled;
    std::atomic<std::uint64_t> finished;
  };
  using Count = std::atomic<std::uint64_t> Words::*;

  // Returns true if the counts of the first `places` ranks of the host have reached `number`.
  bool have_reached(Count count, std::size_t places, std::uint64_t number) const;
  void reach(Count count, std::size_t places, std::uint64_t number);

  Words* const words_;  // the counts of the ranks, by place on the host
  const std::size_t ranks_;
  const std::size_t rails_;
  const std::size_t local_;
  const std::vector<DoorbellButton> bells_;
};

}  // namespace lockstep::wire
