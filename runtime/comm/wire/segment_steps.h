// SPDX-License-Identifier: Apache-2.0
// SegmentSteps is the base class for the steps that process a segment of a collective (segment_pipeline.h). Each kind
// of collective uses a subclass.
//
// Between hosts whose ranks share memory, rail l consists of the l-th rank of each host. Every segment has one range
// for each rail. The ranks of a rail exchange the rail's range only with each other, and each rank of the rail copies
// the range into the memory of all ranks of its host.
//
// Threads: only the group's communication thread calls the functions of SegmentSteps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/comm/transfer.h"
#include "runtime/comm/wire/host_memory.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

// The largest number of segments that are under way at once. Each segment under way has a slot in every rank's window
// of shared memory.
inline constexpr std::size_t kSegmentDepth = 4;
// The assumed cost of a network trip between hosts, as the number of bytes that a host could send during the trip.
inline constexpr std::size_t kBytesPerTrip = 16 << 10;

struct Segment {
  std::uint64_t number;
  comm::Chunk chunk;                     // the segment's elements of each part
  std::vector<std::byte*> memory = {};   // the segment's address in each rank's memory, by place on the host
  comm::Chunk range = {};                // this rank's range, counted from the chunk; empty if the rank has no range
  std::vector<Transfer> transfers = {};  // the transfers under way

  // Returns the tag of a trip. Trip 0 of a segment has the first transfers between two ranks, and trip 1 has the
  // transfers that follow.
  Tag tag(std::uint64_t trip) const { return {Tag::Kind::segment, 2 * number + trip}; }
};

// A Route says whether the ranks of a host find each other's data in arenas, in windows or not at all (`alone`).
enum class Route { alone, arenas, windows };

class SegmentSteps {
 public:
  // A StepContext refers to the objects that a segment's steps use. The objects outlive the steps.
  struct StepContext {
    const Hosts& hosts;
    HostMemory* memory;  // null if the ranks of a host share no memory
    Wire& wire;
  };

  virtual ~SegmentSteps() = default;

  Route route() const { return route_; }
  // Returns whether a rank's window has room for a piece of every rank's row, with pieces large enough to be
  // sent separately.
  static bool has_room_for_rows(const comm::CollectiveArgs& args, const Hosts& hosts);
  // Returns the largest number of elements that one segment may have.
  virtual std::size_t most_elements() const = 0;
  // Sets the segment's addresses in memory, and the range of the segment that this rank transfers between hosts. Posts
  // the receives before this rank has data to send, so that the peers need not ask whether this rank is ready.
  virtual void begin(Segment& segment) = 0;
  // Copies this rank's data into its window of shared memory, if the route is Route::windows.
  virtual void fill(const Segment& segment) = 0;
  // Sends this rank's range of the segment, after all ranks of the host have filled their windows. Only ranks that have
  // a range of the segment call send(), exchange_results() and broadcast_to_host().
  virtual void send(Segment& segment) = 0;
  // Exchanges results with the ranks of this rank's rail, after the transfers of begin() and send() are done.
  virtual void exchange_results(Segment& segment) = 0;
  // Copies the received data into the memory of all ranks of the host, after the transfers of exchange_results()
  // are done.
  virtual void broadcast_to_host(const Segment& segment) = 0;
  // If the route is Route::windows, copies the result out of this rank's window, after every range has reached
  // the window.
  virtual void copy_out(const Segment& segment) = 0;

 protected:
  SegmentSteps(const comm::CollectiveArgs& args, const StepContext& context, Route route)
      : args_(args), hosts_(context.hosts), memory_(context.memory), wire_(context.wire), route_(route) {}

  // Calls what(host) for the other hosts. Each rank calls what() first for the host after its own host, so that not all
  // ranks begin with the same host.
  template <typename What>
  void for_other_hosts(What what) const {
    const std::size_t count = hosts_.ranks.size();
    for (std::size_t i = 1; i < count; ++i) what((hosts_.host + i) % count);
  }
  static std::byte* data_of(const BufferView& buffer) { return static_cast<std::byte*>(buffer.data); }
  static const std::byte* data_of(const ConstBufferView& buffer) { return static_cast<const std::byte*>(buffer.data); }
  // Returns the rank of `host` that belongs to this rank's rail.
  int rank_on(std::size_t host) const { return hosts_.ranks[host][hosts_.local]; }
  bool is_in_rail() const { return hosts_.local < hosts_.rails; }
  void post_send(Segment& segment, std::size_t host, const std::byte* data, std::size_t bytes, std::uint64_t trip,
                 bool is_eager = false);
  void post_receive(Segment& segment, std::size_t host, std::byte* data, std::size_t bytes, std::uint64_t trip,
                    bool is_eager = false);
  // Returns the size in bytes of a segment's slot in a rank's window.
  std::size_t slot_bytes() const { return window_bytes(hosts_) / kSegmentDepth; }
  // Returns the addresses of the segment's slots in the windows of all ranks of the host.
  std::vector<std::byte*> slots(const Segment& segment) const;
  // Returns the largest number of elements of a segment whose slot in a window holds a piece of each rank's row.
  std::size_t most_of_rows() const {
    return slot_bytes() / (args_.element_bytes() * static_cast<std::size_t>(args_.size));
  }
  // Returns the size in bytes of the piece of one row that belongs to the segment.
  std::size_t piece_bytes(const Segment& segment) const { return segment.chunk.length * args_.element_bytes(); }
  // Calls what(owner, offset) for each row that belongs to a rank of host `host` and that this rank transfers between
  // hosts. `owner` is the place on `host` of the row's rank, and `offset` is the offset of the row's piece in a window.
  template <typename What>
  void for_carried_rows(const Segment& segment, std::size_t host, What what) const {
    const std::vector<int>& ranks = hosts_.ranks[host];
    for (std::size_t i = hosts_.local; i < ranks.size(); i += hosts_.rails) {
      what(i, static_cast<std::size_t>(ranks[i]) * piece_bytes(segment));
    }
  }
  // Copies bytes [offset, offset + bytes) of the segment from one rank's memory to the memory of all ranks of the host.
  static void copy_to_all(const Segment& segment, const std::byte* from, std::size_t offset, std::size_t bytes);

  const comm::CollectiveArgs& args_;
  const Hosts& hosts_;
  HostMemory* const memory_;
  Wire& wire_;
  const Route route_;
};

}  // namespace lockstep::wire
