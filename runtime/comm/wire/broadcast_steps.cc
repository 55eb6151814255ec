// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/broadcast_steps.h"

#include <algorithm>

namespace lockstep::wire {

using comm::Chunk;

BroadcastSteps::BroadcastSteps(const comm::CollectiveArgs& args, const StepContext& context)
    : SegmentSteps(args, context, Route::windows) {
  for (std::size_t host = 0; host < hosts_.ranks.size(); ++host) {
    const std::vector<int>& ranks = hosts_.ranks[host];
    const auto found = std::find(ranks.begin(), ranks.end(), args.record.root);
    if (found == ranks.end()) continue;
    root_host_ = host;
    root_local_ = static_cast<std::size_t>(found - ranks.begin());
  }
}

void BroadcastSteps::begin(Segment& segment) {
  segment.memory = slots(segment);
  if (!is_in_rail()) return;
  segment.range = comm::range_of({0, segment.chunk.length}, args_.element_bytes(), hosts_.rails, hosts_.local);
  if (hosts_.host == root_host_) return;
  const Chunk part = part_of(segment, hosts_.host);
  post_receive(segment, root_host_, segment.memory[hosts_.local] + part.offset, part.length, 0);
}

void BroadcastSteps::fill(const Segment& segment) {
  if (args_.rank != args_.record.root) return;
  comm::copy_bytes(segment.memory[hosts_.local], user_data(segment), segment.chunk.length * args_.element_bytes());
}

void BroadcastSteps::send(Segment& segment) {
  if (hosts_.host != root_host_) return;
  for_other_hosts([&](std::size_t host) {
    const Chunk part = part_of(segment, host);
    post_send(segment, host, segment.memory[root_local_] + part.offset, part.length, 0);
  });
}

void BroadcastSteps::exchange_results(Segment& segment) {
  if (hosts_.host == root_host_ || goes_whole(segment)) return;
  std::byte* const memory = segment.memory[hosts_.local];
  const Chunk own = part_of(segment, hosts_.host);
  for_other_hosts([&](std::size_t host) {
    if (host == root_host_) return;
    const Chunk part = part_of(segment, host);
    post_receive(segment, host, memory + part.offset, part.length, 1);
    post_send(segment, host, memory + own.offset, own.length, 1);
  });
}

void BroadcastSteps::broadcast_to_host(const Segment& segment) {
  const std::size_t element = args_.element_bytes();
  const std::byte* const from = segment.memory[hosts_.host == root_host_ ? root_local_ : hosts_.local];
  copy_to_all(segment, from, segment.range.offset * element, segment.range.length * element);
}

void BroadcastSteps::copy_out(const Segment& segment) {
  if (args_.rank == args_.record.root) return;
  comm::copy_bytes(user_data(segment), segment.memory[hosts_.local], segment.chunk.length * args_.element_bytes());
}

// Returns true if sending the whole range in one trip costs the root's host less than sending parts of the range in
// two trips.
bool BroadcastSteps::goes_whole(const Segment& segment) const {
  return segment.range.length * args_.element_bytes() * (hosts_.ranks.size() - 2) <= kBytesPerTrip;
}

Chunk BroadcastSteps::part_of(const Segment& segment, std::size_t host) const {
  const std::size_t element = args_.element_bytes();
  const std::size_t index = host < root_host_ ? host : host - 1;
  const Chunk part =
      goes_whole(segment) ? segment.range : comm::range_of(segment.range, element, hosts_.ranks.size() - 1, index);
  return {part.offset * element, part.length * element};
}

std::byte* BroadcastSteps::user_data(const Segment& segment) const {
  return static_cast<std::byte*>(args_.output.data) + segment.chunk.offset * args_.element_bytes();
}

}  // namespace lockstep::wire
