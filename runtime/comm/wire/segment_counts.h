// SPDX-License-Identifier: Apache-2.0
// How far the ranks of one host are with the segments of their collectives (segment_pipeline.h), in memory that they
// share.
//
// Each rank has two counts, which only it writes and which only grow. No rank is missed: a rank stores its own count
// and then reads the others', all in the one order of sequentially consistent operations. So the rank that reaches a
// number last sees all of them there, and rings for the other ranks. A rank that reads a count sees the writes before
// it.
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
  // Formats this rank's counts, in memory of zeros: before any rank of the host uses them.
  static void format(std::byte* memory, const Hosts& hosts);

  // `memory` and the `bells` of the host's ranks outlive it.
  SegmentCounts(std::byte* memory, const Hosts& hosts, std::vector<DoorbellButton> bells);

  // Notes that this rank's window has its data of segment `number`.
  void fill(std::uint64_t number);
  bool all_filled(std::uint64_t number) const { return have_reached(&Words::filled, ranks_, number); }
  // Notes that this rank has put its share of all segments up to `number` into the memory of every rank of its host,
  // and does not access that memory any more.
  void finish(std::uint64_t number);
  bool all_finished(std::uint64_t number) const { return have_reached(&Words::finished, rails_, number); }
  // The ranks that keep this host from the end of segment `number`, by place: those that have yet to fill their
  // windows, if segments go through windows; otherwise those that have yet to finish. Any thread.
  std::vector<std::size_t> awaited(std::uint64_t number, bool in_windows) const;

 private:
  struct alignas(64) Words {
    std::atomic<std::uint64_t> filled;
    std::atomic<std::uint64_t> finished;
  };
  using Count = std::atomic<std::uint64_t> Words::*;

  // True if the counts of the first `places` ranks have reached `number`.
  bool have_reached(Count count, std::size_t places, std::uint64_t number) const;
  void reach(Count count, std::size_t places, std::uint64_t number);

  Words* const words_;  // by place on the host
  const std::size_t ranks_;
  const std::size_t rails_;
  const std::size_t local_;
  const std::vector<DoorbellButton> bells_;
};

}  // namespace lockstep::wire
