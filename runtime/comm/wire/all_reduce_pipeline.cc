// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/all_reduce_pipeline.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "runtime/comm/reduction.h"

namespace lockstep::wire {
namespace {

using comm::Chunk;
using comm::Task;

// Bytes of a cable that a trip is taken to cost.
constexpr std::size_t kBytesPerTrip = 16 << 10;
// Bytes that a rank sends to each other host for a segment: enough to be worth a transfer's wake-ups, and so little
// that an all-reduce has segments to overlap, and ends soon after the last one's bytes have come.
constexpr std::size_t kLeastPartBytes = 128 << 10;
constexpr std::size_t kMostPartBytes = 512 << 10;
constexpr std::size_t kMostShareBytes = 8 << 20;

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

Hosts each_alone(int rank, int size) {
  Hosts hosts;
  for (int r = 0; r < size; ++r) hosts.ranks.push_back({r});
  hosts.host = static_cast<std::size_t>(rank);
  return hosts;
}

// False where a sum of sums is another than the sum: of 16-bit floats, which are rounded once, and of integers that are
// divided.
bool sums_in_parts(const Task& task) {
  switch (task.record.dtype) {
    case DType::f32:
    case DType::f64: return true;
    case DType::f16:
    case DType::bf16: return false;
    default: return !task.record.weighted && task.record.op != ReduceOp::avg;
  }
}

// By rank; nothing if one of the buffers is in no arena.
std::optional<std::vector<comm::Place>> places_in(const Arrivals& arrivals) {
  std::vector<comm::Place> places(arrivals.size());
  for (std::size_t r = 0; r < arrivals.size(); ++r) {
    if (arrivals[r]->payload.size() != sizeof(comm::Place)) return std::nullopt;
    std::memcpy(&places[r], arrivals[r]->payload.data(), sizeof(comm::Place));
    if (places[r].arena < 0) return std::nullopt;
  }
  return places;
}

// Of a lane, of an all-reduce of `share_bytes` for it.
std::size_t share_bytes_of_segment(std::size_t share_bytes, std::size_t hosts) {
  const std::size_t part = share_bytes / hosts / AllReducePipeline::kDepth;
  return std::min(std::clamp(part, kLeastPartBytes, kMostPartBytes) * hosts, kMostShareBytes);
}

// True where one trip of the whole share to every host costs less than two of its parts.
bool goes_whole(std::size_t share_bytes, std::size_t hosts) {
  return hosts < 2 || share_bytes * (hosts - 1) * (hosts - 2) / hosts <= kBytesPerTrip;
}

}  // namespace

std::vector<std::byte> written(const comm::Place& place) {
  const auto bytes = std::as_bytes(std::span(&place, 1));
  return {bytes.begin(), bytes.end()};
}

AllReducePipeline::AllReducePipeline(const Hosts& hosts, int rank, int size, HostMemory* memory, SegmentCounts* counts,
                                     Wire& wire)
    : hosts_(hosts), alone_(each_alone(rank, size)), memory_(memory), counts_(counts), wire_(wire), scratch_(kDepth) {}

void AllReducePipeline::add(const Task& task, const Arrivals& arrivals, std::function<void()> on_done) {
  if (memory_ == nullptr || !sums_in_parts(task)) {
    all_reduces_.push_back({.task = task,
                            .hosts = alone_,
                            .route = Route::alone,
                            .memory = {static_cast<std::byte*>(task.output.data)},
                            .on_done = {std::move(on_done)}});
    return;
  }
  const auto places = places_in(arrivals);
  std::vector<std::byte*> memory;
  for (std::size_t i = 0; places && i < hosts_.neighbours().size(); ++i) {
    memory.push_back(memory_->address(i, (*places)[static_cast<std::size_t>(hosts_.neighbours()[i])]));
  }
  all_reduces_.push_back({.task = task,
                          .hosts = hosts_,
                          .route = places ? Route::arenas : Route::windows,
                          .memory = std::move(memory),
                          .on_done = {std::move(on_done)}});
}

void AllReducePipeline::after_all(std::function<void()> call) {
  if (empty()) return call();
  all_reduces_.back().on_done.push_back(std::move(call));
}

bool AllReducePipeline::step() {
  bool older_are_finished = true;
  for (Segment& segment : segments_) {
    if (advance(segment, older_are_finished)) return true;
    older_are_finished = segment.phase == Phase::wait_for_host;
  }
  return begin_segment();
}

bool AllReducePipeline::begin_segment() {
  if (segments_.size() == kDepth) return false;
  const auto next = std::find_if(all_reduces_.begin(), all_reduces_.end(),
                                 [](const AllReduce& one) { return one.begun < one.task.count(); });
  if (next == all_reduces_.end()) return false;
  AllReduce& of = *next;
  const std::size_t element = of.task.element_bytes();
  const std::size_t slot = ++last_ % kDepth;
  const std::size_t window = of.route == Route::windows ? window_bytes(hosts_) / kDepth : 0;
  const std::size_t share_bytes =
      share_bytes_of_segment(of.task.count() * element / of.hosts.lanes, of.hosts.ranks.size());
  const std::size_t most = (window > 0 ? window : share_bytes * of.hosts.lanes) / element;
  const Chunk chunk{of.begun, std::min(most, of.task.count() - of.begun)};
  of.begun += chunk.length;
  Segment segment{.of = of, .number = last_, .chunk = chunk, .memory = of.memory, .share = {}};
  for (std::byte*& memory : segment.memory) memory += chunk.offset * element;
  if (window > 0) {
    for (std::size_t i = 0; i < hosts_.neighbours().size(); ++i) {
      segment.memory.push_back(memory_->window(i) + slot * window);
    }
  }
  if (of.hosts.local < of.hosts.lanes) {
    segment.share = comm::share_of({0, chunk.length}, element, of.hosts.lanes, of.hosts.local);
  }
  if (segments_.empty()) {
    oldest_in_windows_.store(window > 0);
    oldest_in_memory_.store(of.route == Route::alone ? 0 : last_);
  }
  segments_.push_back(std::move(segment));
  if (segments_.back().share.length > 0) expect_sums(segments_.back());
  return true;
}

bool AllReducePipeline::advance(Segment& segment, bool older_are_finished) {
  const Route route = segment.of.route;
  switch (segment.phase) {
    case Phase::fill:
      if (route == Route::windows) {
        comm::copy_bytes(segment.memory[hosts_.local], user_data(segment),
                         segment.chunk.length * segment.of.task.element_bytes());
        counts_->fill(segment.number);
      }
      segment.phase = segment.share.length > 0 ? Phase::add_up : Phase::wait_for_older;
      return true;
    case Phase::add_up:
      if (route == Route::windows && !counts_->all_filled(segment.number)) return false;
      add_up_host(segment);
      send_sums(segment);
      segment.phase = Phase::collect;
      return true;
    case Phase::collect:
      if (!are_through(segment.transfers)) return false;
      add_up_hosts(segment);
      hand_on(segment);
      segment.phase = Phase::hand_on;
      return true;
    case Phase::hand_on:
      if (!are_through(segment.transfers)) return false;
      spread(segment);
      segment.phase = Phase::wait_for_older;
      return true;
    case Phase::wait_for_older:
      // A count stands for all segments before it too.
      if (!older_are_finished) return false;
      if (route != Route::alone && hosts_.local < hosts_.lanes) counts_->finish(segment.number);
      segment.phase = Phase::wait_for_host;
      return true;
    case Phase::wait_for_host:
      if (&segment != &segments_.front()) return false;
      if (route != Route::alone && !counts_->all_finished(segment.number)) return false;
      end_segment();
      return true;
  }
  return false;
}

void AllReducePipeline::end_segment() {
  const Segment& segment = segments_.front();
  if (segment.of.route == Route::windows) {
    comm::copy_bytes(user_data(segment), segment.memory[hosts_.local],
                     segment.chunk.length * segment.of.task.element_bytes());
  }
  const bool is_last = segment.chunk.offset + segment.chunk.length == segment.of.task.count();
  segments_.pop_front();
  const bool any = !segments_.empty();
  oldest_in_windows_.store(any && segments_.front().of.route == Route::windows);
  oldest_in_memory_.store(any && segments_.front().of.route != Route::alone ? segments_.front().number : 0);
  if (!is_last) return;
  const std::vector<std::function<void()>> on_done = std::move(all_reduces_.front().on_done);
  all_reduces_.pop_front();
  for (const auto& call : on_done) call();
}

std::vector<std::size_t> AllReducePipeline::awaited_neighbours() const {
  const std::uint64_t number = oldest_in_memory_.load();
  return number == 0 ? std::vector<std::size_t>() : counts_->awaited(number, oldest_in_windows_.load());
}

Chunk AllReducePipeline::part_of(const Segment& segment, std::size_t host) const {
  const std::size_t element = segment.of.task.element_bytes();
  const std::size_t hosts = segment.of.hosts.ranks.size();
  if (goes_whole(segment.share.length * element, hosts)) return segment.share;
  return comm::share_of(segment.share, element, hosts, host);
}

std::byte* AllReducePipeline::place_of(const Segment& segment, std::size_t host) {
  const Hosts& hosts = segment.of.hosts;
  const std::size_t stride = aligned(part_of(segment, hosts.host).length * segment.of.task.element_bytes());
  return scratch_[segment.number % kDepth].take(stride * hosts.ranks.size()) + stride * host;
}

std::byte* AllReducePipeline::user_data(const Segment& segment) const {
  const Task& task = segment.of.task;
  return static_cast<std::byte*>(task.output.data) + segment.chunk.offset * task.element_bytes();
}

template <typename What>
void AllReducePipeline::for_other_hosts(const Segment& segment, What what) const {
  const std::size_t count = segment.of.hosts.ranks.size();
  for (std::size_t i = 1; i < count; ++i) what((segment.of.hosts.host + i) % count);
}

// Before there is anything to send: the peers then need not ask whether this rank is ready.
void AllReducePipeline::expect_sums(Segment& segment) {
  const Hosts& hosts = segment.of.hosts;
  const std::size_t bytes = part_of(segment, hosts.host).length * segment.of.task.element_bytes();
  if (bytes == 0) return;
  for_other_hosts(segment, [&](std::size_t host) {
    segment.transfers.push_back(wire_.receive({hosts.ranks[host][hosts.local], place_of(segment, host), bytes},
                                              {Tag::Kind::segment, 2 * segment.number}));
  });
}

// In this rank's memory: no other rank reads or writes its share there.
void AllReducePipeline::add_up_host(Segment& segment) {
  if (segment.memory.size() == 1) return;
  const std::size_t offset = segment.share.offset * segment.of.task.element_bytes();
  std::vector<const std::byte*> sources;
  for (const std::byte* const memory : segment.memory) sources.push_back(memory + offset);
  const comm::Reduction sum{.dtype = segment.of.task.reduction.dtype, .op = segment.of.task.reduction.op};
  comm::reduce(sum, sources, segment.memory[hosts_.local] + offset, segment.share.length);
}

void AllReducePipeline::send_sums(Segment& segment) {
  const Hosts& hosts = segment.of.hosts;
  const std::size_t element = segment.of.task.element_bytes();
  for_other_hosts(segment, [&](std::size_t host) {
    const Chunk part = part_of(segment, host);
    if (part.length == 0) return;
    segment.transfers.push_back(wire_.send(
        {hosts.ranks[host][hosts.local], segment.memory[hosts.local] + part.offset * element, part.length * element},
        {Tag::Kind::segment, 2 * segment.number}));
  });
}

// In one order on every host, so to the same bits; straight into the memory of all ranks of this one.
void AllReducePipeline::add_up_hosts(Segment& segment) {
  const Hosts& hosts = segment.of.hosts;
  const Chunk part = part_of(segment, hosts.host);
  const std::size_t offset = part.offset * segment.of.task.element_bytes();
  std::vector<const std::byte*> sources(hosts.ranks.size());
  sources[hosts.host] = segment.memory[hosts.local] + offset;
  for_other_hosts(segment, [&](std::size_t host) { sources[host] = place_of(segment, host); });
  std::vector<std::byte*> destinations;
  for (std::byte* const memory : segment.memory) destinations.push_back(memory + offset);
  comm::reduce(segment.of.task.reduction, sources, destinations, part.length);
}

// This rank's part to its lane, and the others' from it; nothing if all parts are here.
void AllReducePipeline::hand_on(Segment& segment) {
  const Hosts& hosts = segment.of.hosts;
  const std::size_t element = segment.of.task.element_bytes();
  if (goes_whole(segment.share.length * element, hosts.ranks.size())) return;
  const Tag tag{Tag::Kind::segment, 2 * segment.number + 1};
  const auto piece = [&](std::size_t host, const Chunk& part) {
    return Piece{hosts.ranks[host][hosts.local], segment.memory[hosts.local] + part.offset * element,
                 part.length * element};
  };
  const Chunk own = part_of(segment, hosts.host);
  for_other_hosts(segment, [&](std::size_t host) {
    const Chunk part = part_of(segment, host);
    if (part.length > 0) segment.transfers.push_back(wire_.receive(piece(host, part), tag));
    if (own.length > 0) segment.transfers.push_back(wire_.send(piece(host, own), tag));
  });
}

// The other hosts' parts to the other ranks of this one, which have its own part already.
void AllReducePipeline::spread(const Segment& segment) {
  const Hosts& hosts = segment.of.hosts;
  const std::size_t element = segment.of.task.element_bytes();
  if (goes_whole(segment.share.length * element, hosts.ranks.size())) return;
  for_other_hosts(segment, [&](std::size_t host) {
    const Chunk part = part_of(segment, host);
    for (std::byte* const memory : segment.memory) {
      comm::copy_bytes(memory + part.offset * element, segment.memory[hosts.local] + part.offset * element,
                       part.length * element);
    }
  });
}

bool AllReducePipeline::are_through(std::vector<Transfer>& transfers) {
  while (!transfers.empty() && wire_.done(transfers.back())) transfers.pop_back();
  return transfers.empty();
}

}  // namespace lockstep::wire
