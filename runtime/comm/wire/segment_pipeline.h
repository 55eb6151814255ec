// SPDX-License-Identifier: Apache-2.0
// Collectives whose data travels outside of frames, cut into segments of which several are under way at once, so that
// the cable carries one while another is added up or copied to other ranks.
//
// A segment goes through phases. Each phase is a step that never waits, and is taken when its condition holds: a
// transfer of the wire is done, or a count of the host has reached a number (segment_counts.h). All ranks number the
// segments of all their collectives alike, so they need not agree on an order of steps. The kind of collective decides
// what a step does (segment_steps.h).
//
// Threads: the group's communication thread, except awaited_neighbours(): any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/comm/transfer.h"
#include "runtime/comm/wire/arrival_table.h"
#include "runtime/comm/wire/host_memory.h"
#include "runtime/comm/wire/movement.h"
#include "runtime/comm/wire/segment_counts.h"
#include "runtime/comm/wire/segment_steps.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

class SegmentPipeline {
 public:
  // `memory` and `counts` are null if the ranks of a host share no memory. All arguments outlive it.
  SegmentPipeline(const Hosts& hosts, int rank, int size, HostMemory* memory, SegmentCounts* counts, Wire& wire);

  // Whether a collective goes by segments: all-reduces; and, if the ranks of a host share memory, collectives whose
  // data would cross a cable once for each of its ranks: reduce, broadcast, all_gather and reduce_scatter. The others
  // block (movement.h).
  bool serves(const comm::CollectiveArgs& args) const;
  // Takes over a collective that all ranks have announced, in the same order on every rank. `args` and its memory stay
  // until step() has called `on_done`.
  void add(const comm::CollectiveArgs& args, const Arrivals& arrivals, std::function<void()> on_done);
  // Makes step() call `call` after all collectives that were added are done; calls it at once if there are none.
  void after_all(std::function<void()> call);
  bool empty() const { return collectives_.empty(); }
  // Takes a step if there is one to take; returns whether there was. If not, the caller waits for the wire or the host.
  // Throws Broken.
  bool step();
  // The ranks of this host that the oldest segment waits for, by place.
  std::vector<std::size_t> awaited_neighbours() const;

 private:
  struct Collective {
    const comm::CollectiveArgs& args;
    std::unique_ptr<SegmentSteps> steps;
    std::size_t begun = 0;  // elements of segments that have begun
    std::vector<std::function<void()>> on_done;
  };
  enum class Phase { fill, send, exchange_results, broadcast_to_host, wait_for_older, wait_for_host };
  struct UnderWay {
    Segment segment;
    SegmentSteps& steps;
    Phase phase = Phase::fill;
    bool is_last = false;  // of its collective
  };

  bool begin_segment();
  // Takes a step of a segment, if it can. `older_are_finished` says whether the segments before it are.
  bool advance(UnderWay& one, bool older_are_finished);
  void end_segment();
  bool are_through(std::vector<Transfer>& transfers);
  // Tells awaited_neighbours() which segment is the oldest.
  void note_oldest();

  const Hosts hosts_;
  HostMemory* const memory_;
  SegmentCounts* const counts_;
  Wire& wire_;
  std::deque<Collective> collectives_;  // not done, in order; none moves while it is in the deque
  std::deque<UnderWay> segments_;       // in order
  std::uint64_t last_ = 0;
  std::vector<ScratchBuffer> scratch_;  // for reductions
  // The oldest segment, if it is in a host's memory; 0: there is none.
  std::atomic<std::uint64_t> oldest_in_memory_{0};
  std::atomic<bool> oldest_in_windows_{false};
};

}  // namespace lockstep::wire
