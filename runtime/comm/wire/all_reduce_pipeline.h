// SPDX-License-Identifier: Apache-2.0
// All-reduces whose data goes beside frames, cut into segments of which several are under way at once, so that the
// cable carries one while another is added up or handed round.
//
// Between hosts whose ranks share memory each host's cable carries what one rank per host would. Lane l is the ranks
// that are l-th on their hosts. Of every segment a lane has a share: each of its ranks adds up that share of all memory
// on its host, exchanges the sums with its lane, and puts the result into all memory on its host. What is added up is
// the tree over a host's ranks, then the tree over the hosts: where every host has the same power of two of ranks, in
// the order of the hosts, that is the tree of comm/reduction.h over all ranks, and the bits are those of one host.
// Sums cross as values accumulate where their own type would be rounded or divided twice: of 16-bit floats as float32.
// Results, of which there is one trip too, cross in their own type. Where no memory is shared every rank is a host of
// its own, and what crosses is its data.
//
// A segment goes through phases. Each phase is a step that never waits, and is taken when what it needs is there: a
// transfer of the wire, or a count of the host's (segment_counts.h). All ranks number the segments of all their
// all-reduces alike, so no order between steps has to be agreed on.
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
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

// A place as it travels with the announcement of an all-reduce.
std::vector<std::byte> written(const comm::Place& place);

class AllReducePipeline {
 public:
  // Segments under way at once.
  static constexpr std::size_t kDepth = 4;

  // `memory` and `counts`: null if the ranks of a host share none. All outlive it.
  AllReducePipeline(const Hosts& hosts, int rank, int size, HostMemory* memory, SegmentCounts* counts, Wire& wire);

  // Takes over an all-reduce that all ranks have announced, in the same order on every rank. `task` and its memory stay
  // until `on_done` has been called, by step().
  void add(const comm::Task& task, const Arrivals& arrivals, std::function<void()> on_done);
  // Calls it, by step(), once all that have been added are done; at once if there are none.
  void after_all(std::function<void()> call);
  bool empty() const { return all_reduces_.empty(); }
  // Takes a step if there is one to take, and says whether there was: if not, it has to wait for the wire or the host.
  // Throws Broken.
  bool step();
  // Whom of this host the oldest segment waits for, by their places.
  std::vector<std::size_t> awaited_neighbours() const;

 private:
  // Where the ranks of a host find each other's data.
  enum class Route { alone, arenas, windows };
  struct AllReduce {
    const comm::Task& task;
    Route route;
    std::vector<std::byte*> memory;  // by place on the host; in windows: none
    DType sums;                      // as what a host's sums cross
    std::size_t begun = 0;           // elements of segments that have begun
    std::vector<std::function<void()>> on_done;

    // True if a host's sums take the place of a rank's data.
    bool sums_in_place() const { return sums == task.record.dtype; }
  };
  enum class Phase { fill, add_up, collect, hand_on, wait_for_older, wait_for_host };
  struct Segment {
    AllReduce& of;
    std::uint64_t number;
    comm::Chunk chunk;               // of its elements
    std::vector<std::byte*> memory;  // by place on the host: where the chunk begins
    comm::Chunk share;               // this rank's, counted from there; empty if it carries none
    Phase phase = Phase::fill;
    std::vector<Transfer> transfers = {};
  };

  bool begin_segment();
  // Takes a step of a segment, if it can. `older_are_finished`: those before it.
  bool advance(Segment& segment, bool older_are_finished);
  void end_segment();

  void expect_sums(Segment& segment);
  void add_up_host(Segment& segment);
  void send_sums(Segment& segment);
  void add_up_hosts(Segment& segment);
  void hand_on(Segment& segment);
  void spread(const Segment& segment);
  bool are_through(std::vector<Transfer>& transfers);

  comm::Chunk part_of(const Segment& segment, std::size_t host) const;
  // True if all of a share crosses at once, to every host.
  bool goes_whole(const Segment& segment) const;
  // Where another host's sum of this rank's part, or of the whole share, comes to; and where this host's of the share
  // is.
  std::byte* place_of(const Segment& segment, std::size_t host);
  std::byte* own_sums(const Segment& segment);
  std::byte* user_data(const Segment& segment) const;
  // Calls what(host) for the other hosts, each host beginning with the one after it, so that not all turn to the same
  // one.
  template <typename What>
  void for_other_hosts(What what) const;

  const Hosts hosts_;
  HostMemory* const memory_;
  SegmentCounts* const counts_;
  Wire& wire_;
  std::deque<AllReduce> all_reduces_;  // not done, in order; none moves while it is there
  std::deque<Segment> segments_;       // under way, in order
  std::uint64_t last_ = 0;
  std::vector<ScratchBuffer> scratch_;              // by number modulo kDepth: hosts' sums
  std::atomic<std::uint64_t> oldest_in_memory_{0};  // the oldest segment, if a host's memory is in it; 0: there is none
  std::atomic<bool> oldest_in_windows_{false};
};

}  // namespace lockstep::wire
