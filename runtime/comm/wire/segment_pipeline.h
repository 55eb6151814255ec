// SPDX-License-Identifier: Apache-2.0
// SegmentPipeline runs collectives whose data is too large for frames. Each collective is cut into segments, and
// several segments are under way at once: while the network transfers one segment, another segment is reduced or copied
// to other ranks.
//
// A segment goes through phases. Each phase of a segment is a step that never blocks. The pipeline runs a step as soon
// as the step's condition holds, for example that the segment's transfers are done, or that all ranks of the host have
// filled their windows (segment_counts.h). A segment has an equal number on all ranks, so the ranks need not agree on
// an order of steps. For each kind of collective, a subclass of SegmentSteps implements the steps (segment_steps.h).
//
// Threads: only the group's communication thread calls the functions of SegmentPipeline; as an exception, any thread
//   may call awaited_neighbours().
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
  // `memory` and `counts` are null if the ranks of a host share no memory. All arguments must outlive the pipeline.
  SegmentPipeline(const Hosts& hosts, int rank, int size, HostMemory* memory, SegmentCounts* counts, Wire& wire);

  // Returns whether a collective is cut into segments. An all-reduce is always cut into segments. If the ranks of a
  // host share memory, reduce, broadcast, all_gather and reduce_scatter are also cut into segments, because otherwise
  // their data would be sent to a host once for each rank. The remaining collectives block in move() (movement.h).
  bool serves(const comm::CollectiveArgs& args) const;
  // Adds a collective that all ranks have announced. REQUIRES: all ranks of the group add their collectives in the same
  // order. `args` and the memory of its buffers must stay valid until step() has called `on_done`.
  void add(const comm::CollectiveArgs& args, const Arrivals& arrivals, std::function<void()> on_done);
  // Makes step() call `call` after all added collectives are done. If the pipeline is empty, after_all() calls `call`
  // at once.
  void after_all(std::function<void()> call);
  bool empty() const { return collectives_.empty(); }
  // Takes one step of one segment if a step can be taken, and returns whether a step was taken. If step() returns
  // false, the caller must wait for the wire or for a rank of the host. Throws Broken.
  bool step();
  // Returns the places of the ranks of this host for which the oldest segment waits.
  std::vector<std::size_t> awaited_neighbours() const;

 private:
  struct Collective {
    const comm::CollectiveArgs& args;
    std::unique_ptr<SegmentSteps> steps;
    std::size_t begun = 0;  // the number of elements whose segments have begun
    std::vector<std::function<void()>> on_done;
  };
  enum class Phase { fill, send, exchange_results, broadcast_to_host, wait_for_older, wait_for_host };
  struct UnderWay {
    Segment segment;
    SegmentSteps& steps;
    Phase phase = Phase::fill;
    bool is_last = false;  // true for the last segment of a collective
  };

  bool begin_segment();
  // Takes the next step of segment `one` if that step can be taken. `older_are_finished` says whether all segments
  // older than `one` are finished.
  bool advance(UnderWay& one, bool older_are_finished);
  void end_segment();
  bool are_through(std::vector<Transfer>& transfers);
  // Tells awaited_neighbours() which segment is the oldest.
  void note_oldest();

  const Hosts hosts_;
  HostMemory* const memory_;
  SegmentCounts* const counts_;
  Wire& wire_;
  std::deque<Collective> collectives_;  // collectives not done, in order; no element moves while it is in the deque
  std::deque<UnderWay> segments_;       // the segments under way, in order
  std::uint64_t last_ = 0;
  std::vector<ScratchBuffer> scratch_;  // the scratch memory for reductions
  // The number of the oldest segment if that segment goes through the host's shared memory, or 0.
  std::atomic<std::uint64_t> oldest_in_memory_{0};
  std::atomic<bool> oldest_in_windows_{false};
};

}  // namespace lockstep::wire
