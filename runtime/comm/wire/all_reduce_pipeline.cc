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

// True where one trip of a whole share to every host costs less than two of its parts: sums first, and then results.
bool goes_whole(std::size_t length, std::size_t sum_bytes, std::size_t element_bytes, std::size_t hosts) {
  return hosts < 2 || length * (hosts - 1) * ((hosts - 1) * sum_bytes - element_bytes) / hosts <= kBytesPerTrip;
}

}  // namespace

std::vector<std::byte> written(const comm::Place& place) {
  const auto bytes = std::as_bytes(std::span(&place, 1));
  return {bytes.begin(), bytes.end()};
}

AllReducePipeline::AllReducePipeline(const Hosts& hosts, int rank, int size, HostMemory* memory, SegmentCounts* counts,
                                     Wire& wire)
    : hosts_(memory != nullptr ? hosts : each_alone(rank, size)),
      memory_(memory),
      counts_(counts),
      wire_(wire),
      scratch_(kDepth) {}

void AllReducePipeline::add(const Task& task, const Arrivals& arrivals, std::function<void()> on_done) {
  if (memory_ == nullptr) {
    all_reduces_.push_back({.task = task,
                            .route = Route::alone,
                            .memory = {static_cast<std::byte*>(task.output.data)},
                            .sums = task.record.dtype,
                            .on_done = {std::move(on_done)}});
    return;
  }
  const auto places = places_in(arrivals);
  std::vector<std::byte*> memory;
  for (std::size_t i = 0; places && i < hosts_.neighbours().size(); ++i) {
    memory.push_back(memory_->address(i, (*places)[static_cast<std::size_t>(hosts_.neighbours()[i])]));
  }
  all_reduces_.push_back({.task = task,
                          .route = places ? Route::arenas : Route::windows,
                          .memory = std::move(memory),
                          .sums = comm::dtype_of_partials(task.reduction),
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
  const std::size_t sum = size_of(of.sums);
  const std::size_t share_bytes = share_bytes_of_segment(of.task.count() * sum / hosts_.lanes, hosts_.ranks.size());
  const std::size_t most = window > 0 ? window / element : share_bytes * hosts_.lanes / sum;
  const Chunk chunk{of.begun, std::min(most, of.task.count() - of.begun)};
  of.begun += chunk.length;
  Segment segment{.of = of, .number = last_, .chunk = chunk, .memory = of.memory, .share = {}};
  for (std::byte*& memory : segment.memory) memory += chunk.offset * element;
  if (window > 0) {
    for (std::size_t i = 0; i < hosts_.neighbours().size(); ++i) {
      segment.memory.push_back(memory_->window(i) + slot * window);
    }
  }
  if (hosts_.local < hosts_.lanes) {
    segment.share = comm::share_of({0, chunk.length}, element, hosts_.lanes, hosts_.local);
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
  if (goes_whole(segment)) return segment.share;
  return comm::share_of(segment.share, segment.of.task.element_bytes(), hosts_.ranks.size(), host);
}

bool AllReducePipeline::goes_whole(const Segment& segment) const {
  return wire::goes_whole(segment.share.length, size_of(segment.of.sums), segment.of.task.element_bytes(),
                          hosts_.ranks.size());
}

// Behind all other hosts' sums is this one's, if it is not in this rank's memory.
std::byte* AllReducePipeline::place_of(const Segment& segment, std::size_t host) {
  const std::size_t sum = size_of(segment.of.sums);
  const std::size_t stride = aligned(part_of(segment, hosts_.host).length * sum);
  const std::size_t own = segment.of.sums_in_place() ? 0 : segment.share.length * sum;
  return scratch_[segment.number % kDepth].take(stride * hosts_.ranks.size() + own) + stride * host;
}

std::byte* AllReducePipeline::own_sums(const Segment& segment) {
  if (!segment.of.sums_in_place()) return place_of(segment, hosts_.ranks.size());
  // No other rank reads or writes its share there.
  return segment.memory[hosts_.local] + segment.share.offset * segment.of.task.element_bytes();
}

std::byte* AllReducePipeline::user_data(const Segment& segment) const {
  const Task& task = segment.of.task;
  return static_cast<std::byte*>(task.output.data) + segment.chunk.offset * task.element_bytes();
}

template <typename What>
void AllReducePipeline::for_other_hosts(What what) const {
  const std::size_t count = hosts_.ranks.size();
  for (std::size_t i = 1; i < count; ++i) what((hosts_.host + i) % count);
}

// Before there is anything to send: the peers then need not ask whether this rank is ready.
void AllReducePipeline::expect_sums(Segment& segment) {
  const std::size_t bytes = part_of(segment, hosts_.host).length * size_of(segment.of.sums);
  if (bytes == 0) return;
  for_other_hosts([&](std::size_t host) {
    segment.transfers.push_back(wire_.receive({hosts_.ranks[host][hosts_.local], place_of(segment, host), bytes},
                                              {Tag::Kind::segment, 2 * segment.number}));
  });
}

void AllReducePipeline::add_up_host(Segment& segment) {
  if (segment.memory.size() == 1 && segment.of.sums_in_place()) return;
  const std::size_t offset = segment.share.offset * segment.of.task.element_bytes();
  std::vector<const std::byte*> sources;
  for (const std::byte* const memory : segment.memory) sources.push_back(memory + offset);
  comm::reduce_to_partial(segment.of.task.reduction, sources, own_sums(segment), segment.share.length);
}

void AllReducePipeline::send_sums(Segment& segment) {
  const std::size_t sum = size_of(segment.of.sums);
  for_other_hosts([&](std::size_t host) {
    const Chunk part = part_of(segment, host);
    if (part.length == 0) return;
    segment.transfers.push_back(
        wire_.send({hosts_.ranks[host][hosts_.local], own_sums(segment) + (part.offset - segment.share.offset) * sum,
                    part.length * sum},
                   {Tag::Kind::segment, 2 * segment.number}));
  });
}

// In one order on every host, so to the same bits; straight into the memory of all ranks of this one.
void AllReducePipeline::add_up_hosts(Segment& segment) {
  const Chunk part = part_of(segment, hosts_.host);
  const std::size_t offset = part.offset * segment.of.task.element_bytes();
  std::vector<const std::byte*> sources(hosts_.ranks.size());
  sources[hosts_.host] = own_sums(segment) + (part.offset - segment.share.offset) * size_of(segment.of.sums);
  for_other_hosts([&](std::size_t host) { sources[host] = place_of(segment, host); });
  std::vector<std::byte*> destinations;
  for (std::byte* const memory : segment.memory) destinations.push_back(memory + offset);
  if (memory_ == nullptr) {
    comm::reduce(segment.of.task.reduction, sources, destinations, part.length);
  } else {
    comm::reduce_partials(segment.of.task.reduction, sources, destinations, part.length);
  }
}

// This rank's part to its lane, and the others' from it; nothing if all parts are here.
void AllReducePipeline::hand_on(Segment& segment) {
  if (goes_whole(segment)) return;
  const std::size_t element = segment.of.task.element_bytes();
  const Tag tag{Tag::Kind::segment, 2 * segment.number + 1};
  const auto piece = [&](std::size_t host, const Chunk& part) {
    return Piece{hosts_.ranks[host][hosts_.local], segment.memory[hosts_.local] + part.offset * element,
                 part.length * element};
  };
  const Chunk own = part_of(segment, hosts_.host);
  for_other_hosts([&](std::size_t host) {
    const Chunk part = part_of(segment, host);
    if (part.length > 0) segment.transfers.push_back(wire_.receive(piece(host, part), tag));
    if (own.length > 0) segment.transfers.push_back(wire_.send(piece(host, own), tag));
  });
}

// The other hosts' parts to the other ranks of this one, which have its own part already.
void AllReducePipeline::spread(const Segment& segment) {
  if (goes_whole(segment)) return;
  const std::size_t element = segment.of.task.element_bytes();
  for_other_hosts([&](std::size_t host) {
    const Chunk part = part_of(segment, host);
    for (std::byte* const memory : segment.memory) {
      comm::copy_bytes(memory + part.offset * element, segment.memory[hosts_.local] + part.offset * element,
                       part.length * element);
    }
  });
}

bool AllReducePipeline::are_through(std::vector<Transfer>& transfers) {
  while (!transfers.empty() && wire_.done(transfers.back())) transfers.pop_back();
  return transfers.empty();
}

}  // namespace lockstep::wire
