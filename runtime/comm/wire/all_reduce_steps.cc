// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/all_reduce_steps.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "runtime/comm/reduction.h"

namespace lockstep::wire {
namespace {

using comm::Chunk;
using comm::CollectiveArgs;

// The smallest and the largest number of bytes of one segment that a rank sends to each other host. A transfer of fewer
// bytes than kLeastPartBytes would not be worth the wake-ups that the transfer causes. With more bytes than
// kMostPartBytes, an all-reduce would have no overlapping segments, and would end long after the last segment's bytes
// have arrived.
constexpr std::size_t kLeastPartBytes = 256 << 10;
constexpr std::size_t kMostPartBytes = 512 << 10;
constexpr std::size_t kMostShareBytes = 8 << 20;

// The largest number of bytes that a rank sends eagerly, which means before the peer has posted the receive. Eager data
// arrives a network trip sooner, but is copied once more if the peer posts the receive late. A late receive is less
// likely with two hosts and few bytes, so kMostEagerBytesOfFew is larger than kMostEagerBytes.
constexpr std::size_t kMostEagerBytes = 128 << 10;
constexpr std::size_t kMostEagerBytesOfFew = 512 << 10;
constexpr std::size_t kFewBytes = 1 << 20;  // the most bytes of a rail's sums that count as few

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Returns the address of each rank's buffer, for the ranks of this host. Returns an empty list if the buffer of any
// rank, on any host, is in no arena.
std::vector<std::byte*> arenas_of(const SegmentSteps::StepContext& context, const CollectiveArgs& args,
                                  const Arrivals& arrivals) {
  if (context.memory == nullptr) return {static_cast<std::byte*>(args.output.data)};
  std::vector<comm::ArenaOffset> places(arrivals.size());
  for (std::size_t r = 0; r < arrivals.size(); ++r) {
    if (arrivals[r]->payload.size() != sizeof(comm::ArenaOffset)) return {};
    std::memcpy(&places[r], arrivals[r]->payload.data(), sizeof(comm::ArenaOffset));
    if (places[r].arena < 0) return {};
  }
  std::vector<std::byte*> arenas;
  for (std::size_t i = 0; i < context.hosts.neighbours().size(); ++i) {
    arenas.push_back(context.memory->address(i, places[static_cast<std::size_t>(context.hosts.neighbours()[i])]));
  }
  return arenas;
}

// Returns the number of bytes of one segment that belong to a rank, if `range_bytes` bytes of the whole all-reduce
// belong to the rank.
std::size_t range_bytes_of_segment(std::size_t range_bytes, std::size_t hosts) {
  const std::size_t part = range_bytes / hosts / kSegmentDepth;
  return std::min(std::clamp(part, kLeastPartBytes, kMostPartBytes) * hosts, kMostShareBytes);
}

}  // namespace

std::vector<std::byte> written(const comm::ArenaOffset& offset) {
  const auto bytes = std::as_bytes(std::span(&offset, 1));
  return {bytes.begin(), bytes.end()};
}

AllReduceSteps::AllReduceSteps(const CollectiveArgs& args, const StepContext& context, const Arrivals& arrivals,
                               std::vector<ScratchBuffer>& scratch)
    : AllReduceSteps(args, context, arenas_of(context, args, arrivals), scratch) {}

AllReduceSteps::AllReduceSteps(const CollectiveArgs& args, const StepContext& context, std::vector<std::byte*> arenas,
                               std::vector<ScratchBuffer>& scratch)
    : SegmentSteps(args, context,
                   context.memory == nullptr ? Route::alone
                   : arenas.empty()          ? Route::windows
                                             : Route::arenas),
      arenas_(std::move(arenas)),
      sums_(context.memory == nullptr ? args.record.dtype : comm::dtype_of_partials(args.reduction)),
      most_eager_(hosts_.ranks.size() == 2 && args.count() * size_of(sums_) <= kFewBytes * hosts_.rails
                      ? kMostEagerBytesOfFew
                      : kMostEagerBytes),
      scratch_(scratch) {}

std::size_t AllReduceSteps::most_elements() const {
  if (route_ == Route::windows) return slot_bytes() / args_.element_bytes();
  const std::size_t sum = size_of(sums_);
  return range_bytes_of_segment(args_.count() * sum / hosts_.rails, hosts_.ranks.size()) * hosts_.rails / sum;
}

void AllReduceSteps::begin(Segment& segment) {
  const std::size_t element = args_.element_bytes();
  if (route_ == Route::windows) segment.memory = slots(segment);
  for (std::byte* const arena : arenas_) segment.memory.push_back(arena + segment.chunk.offset * element);
  if (!is_in_rail()) return;
  segment.range = comm::range_of({0, segment.chunk.length}, element, hosts_.rails, hosts_.local);
  const std::size_t bytes = part_of(segment, hosts_.host).length * size_of(sums_);
  if (bytes == 0) return;
  for_other_hosts(
      [&](std::size_t host) { post_receive(segment, host, place_of(segment, host), bytes, 0, is_eager(bytes)); });
}

void AllReduceSteps::fill(const Segment& segment) {
  comm::copy_bytes(segment.memory[hosts_.local], user_data(segment), segment.chunk.length * args_.element_bytes());
}

void AllReduceSteps::send(Segment& segment) {
  add_up_host(segment);
  const std::size_t sum = size_of(sums_);
  for_other_hosts([&](std::size_t host) {
    const Chunk part = part_of(segment, host);
    std::byte* const sums = own_sums(segment) + (part.offset - segment.range.offset) * sum;
    post_send(segment, host, sums, part.length * sum, 0, is_eager(part.length * sum));
  });
}

// Adds up the hosts' sums. If goes_whole() is false, this rank then sends its part of the result to the other hosts and
// receives the other parts.
void AllReduceSteps::exchange_results(Segment& segment) {
  add_up_hosts(segment);
  if (goes_whole(segment)) return;
  const std::size_t element = args_.element_bytes();
  std::byte* const memory = segment.memory[hosts_.local];
  const Chunk own = part_of(segment, hosts_.host);
  for_other_hosts([&](std::size_t host) {
    const Chunk part = part_of(segment, host);
    const std::size_t in = part.length * element, out = own.length * element;
    post_receive(segment, host, memory + part.offset * element, in, 1, is_eager(in));
    post_send(segment, host, memory + own.offset * element, out, 1, is_eager(out));
  });
}

// Copies the parts of the result that other hosts have sent into the memory of the other ranks of this host. The other
// ranks of this host already have this host's own part of the result.
void AllReduceSteps::broadcast_to_host(const Segment& segment) {
  if (goes_whole(segment)) return;
  const std::size_t element = args_.element_bytes();
  for_other_hosts([&](std::size_t host) {
    const Chunk part = part_of(segment, host);
    copy_to_all(segment, segment.memory[hosts_.local], part.offset * element, part.length * element);
  });
}

void AllReduceSteps::copy_out(const Segment& segment) {
  if (args_.record.kind == comm::OpKind::reduce && args_.rank != args_.record.root) return;
  comm::copy_bytes(user_data(segment), segment.memory[hosts_.local], segment.chunk.length * args_.element_bytes());
}

void AllReduceSteps::add_up_host(const Segment& segment) {
  if (segment.memory.size() == 1 && sums_in_place()) return;
  const std::size_t offset = segment.range.offset * args_.element_bytes();
  std::vector<const std::byte*> sources;
  for (const std::byte* const memory : segment.memory) sources.push_back(memory + offset);
  comm::reduce_to_partial(args_.reduction, sources, own_sums(segment), segment.range.length);
}

// Adds up the hosts' sums in an order that is equal on every host, so that every host gets the same bits. Writes the
// result into the memory of all ranks of this host.
void AllReduceSteps::add_up_hosts(const Segment& segment) {
  const Chunk part = part_of(segment, hosts_.host);
  const std::size_t offset = part.offset * args_.element_bytes();
  std::vector<const std::byte*> sources(hosts_.ranks.size());
  sources[hosts_.host] = own_sums(segment) + (part.offset - segment.range.offset) * size_of(sums_);
  for_other_hosts([&](std::size_t host) { sources[host] = place_of(segment, host); });
  std::vector<std::byte*> destinations;
  for (std::byte* const memory : segment.memory) destinations.push_back(memory + offset);
  if (route_ == Route::alone) {
    comm::reduce(args_.reduction, sources, destinations, part.length);
  } else {
    comm::reduce_partials(args_.reduction, sources, destinations, part.length);
  }
}

// Returns true if sending the whole range to every host in one trip costs less than sending the range's parts in two
// trips (sums, then results).
bool AllReduceSteps::goes_whole(const Segment& segment) const {
  const std::size_t hosts = hosts_.ranks.size();
  const std::size_t more = (hosts - 1) * size_of(sums_) - args_.element_bytes();
  return segment.range.length * (hosts - 1) * more / hosts <= kBytesPerTrip;
}

Chunk AllReduceSteps::part_of(const Segment& segment, std::size_t host) const {
  if (goes_whole(segment)) return segment.range;
  return comm::range_of(segment.range, args_.element_bytes(), hosts_.ranks.size(), host);
}

// Returns the address in scratch memory at which the sum that `host` sends is stored. If sums_in_place() is false, this
// host's own sum lies in scratch memory after the sums of all hosts.
std::byte* AllReduceSteps::place_of(const Segment& segment, std::size_t host) {
  const std::size_t sum = size_of(sums_);
  const std::size_t stride = aligned(part_of(segment, hosts_.host).length * sum);
  const std::size_t own = sums_in_place() ? 0 : segment.range.length * sum;
  return scratch_[segment.number % kSegmentDepth].take(stride * hosts_.ranks.size() + own) + stride * host;
}

std::byte* AllReduceSteps::own_sums(const Segment& segment) {
  if (!sums_in_place()) return place_of(segment, hosts_.ranks.size());
  // The sums may overwrite this rank's range, because no other rank reads or writes this range in this rank's memory.
  return segment.memory[hosts_.local] + segment.range.offset * args_.element_bytes();
}

std::byte* AllReduceSteps::user_data(const Segment& segment) const {
  return static_cast<std::byte*>(args_.output.data) + segment.chunk.offset * args_.element_bytes();
}

}  // namespace lockstep::wire
