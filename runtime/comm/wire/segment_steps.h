// SPDX-License-Identifier: Apache-2.0
// A segment of a collective, and the steps that a kind of collective takes with each of its segments
// (segment_pipeline.h).
//
// Between hosts whose ranks share memory, rail l is the ranks that are l-th on their hosts. A rail has a share of every
// segment. Its ranks exchange the share only with each other, and put it into the memory of all ranks of their host.
//
// Threads: the group's communication thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/comm/transfer.h"
#include "runtime/comm/wire/host_memory.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

// The number of segments under way at once: each has a slot of every rank's window.
inline constexpr std::size_t kSegmentDepth = 4;
// The assumed cost of a trip, in bytes of a cable.
inline constexpr std::size_t kBytesPerTrip = 16 << 10;

struct Segment {
  std::uint64_t number;
  comm::Chunk chunk;                     // of the elements of a part
  std::vector<std::byte*> memory = {};   // by place on the host: where a rank has it
  comm::Chunk share = {};                // this rank's share, counted from there; empty if it carries none
  std::vector<Transfer> transfers = {};  // under way

  // The tag of a trip: 0 is the first transfers between two ranks, 1 those that follow.
  Tag tag(std::uint64_t trip) const { return {Tag::Kind::segment, 2 * number + trip}; }
};

// How the ranks of a host find each other's data.
enum class Route { alone, arenas, windows };

class SegmentSteps {
 public:
  // The surroundings of a segment's steps, which outlive them.
  struct StepContext {
    const Hosts& hosts;
    HostMemory* memory;  // null if the ranks of a host share none
    Wire& wire;
  };

  virtual ~SegmentSteps() = default;

  Route route() const { return route_; }
  // Whether a window has room for a piece of every rank's row, none too small to be sent on its own.
  static bool has_room_for_rows(const comm::CollectiveArgs& args, const Hosts& hosts);
  // The number of elements of a segment, at most.
  virtual std::size_t most_elements() const = 0;
  // Notes where the segment is, and what this rank carries of it. Posts the receives before there is anything to send:
  // so the peers need not ask whether this rank is ready.
  virtual void begin(Segment& segment) = 0;
  // With windows: puts this rank's data into its own.
  virtual void fill(const Segment& segment) = 0;
  // Sends, after all ranks of the host have filled their windows. Only ranks that carry a share take this step and the
  // next two.
  virtual void send(Segment& segment) = 0;
  // Exchanges results, after the posted transfers are done.
  virtual void exchange_results(Segment& segment) = 0;
  // Puts the received data into the memory of all ranks of the host, after the transfers posted since are done.
  virtual void broadcast_to_host(const Segment& segment) = 0;
  // With windows: copies the result out of this rank's window, after every share is there.
  virtual void copy_out(const Segment& segment) = 0;

 protected:
  SegmentSteps(const comm::CollectiveArgs& args, const StepContext& context, Route route)
      : args_(args), hosts_(context.hosts), memory_(context.memory), wire_(context.wire), route_(route) {}

  // Calls what(host) for the other hosts; each host begins with the one after it, so that not all begin with the same
  // one.
  template <typename What>
  void for_other_hosts(What what) const {
    const std::size_t count = hosts_.ranks.size();
    for (std::size_t i = 1; i < count; ++i) what((hosts_.host + i) % count);
  }
  static std::byte* data_of(const BufferView& buffer) { return static_cast<std::byte*>(buffer.data); }
  static const std::byte* data_of(const ConstBufferView& buffer) { return static_cast<const std::byte*>(buffer.data); }
  // The rank of this one's rail on `host`.
  int counterpart(std::size_t host) const { return hosts_.ranks[host][hosts_.local]; }
  bool is_in_rail() const { return hosts_.local < hosts_.rails; }
  void post_send(Segment& segment, std::size_t host, const std::byte* data, std::size_t bytes, std::uint64_t trip,
                 bool is_eager = false);
  void post_receive(Segment& segment, std::size_t host, std::byte* data, std::size_t bytes, std::uint64_t trip,
                    bool is_eager = false);
  // The bytes of a segment in a window, and the places where the ranks of the host have it in theirs.
  std::size_t slot_bytes() const { return window_bytes(hosts_) / kSegmentDepth; }
  std::vector<std::byte*> slots(const Segment& segment) const;
  // The number of elements of a row, at most, and its bytes, for a window that has a piece of every rank's row, in the
  // order of ranks.
  std::size_t most_of_rows() const {
    return slot_bytes() / (args_.element_bytes() * static_cast<std::size_t>(args_.size));
  }
  std::size_t piece_bytes(const Segment& segment) const { return segment.chunk.length * args_.element_bytes(); }
  // Calls what(owner, offset) for the rows of a host's ranks that this rank carries: the owner's place on that host,
  // and the piece's place in a window.
  template <typename What>
  void for_carried_rows(const Segment& segment, std::size_t host, What what) const {
    const std::vector<int>& ranks = hosts_.ranks[host];
    for (std::size_t i = hosts_.local; i < ranks.size(); i += hosts_.rails) {
      what(i, static_cast<std::size_t>(ranks[i]) * piece_bytes(segment));
    }
  }
  // Copies bytes [offset, offset + bytes) from one rank's memory to that of all ranks of the host.
  static void copy_to_all(const Segment& segment, const std::byte* from, std::size_t offset, std::size_t bytes);

  const comm::CollectiveArgs& args_;
  const Hosts& hosts_;
  HostMemory* const memory_;
  Wire& wire_;
  const Route route_;
};

}  // namespace lockstep::wire
