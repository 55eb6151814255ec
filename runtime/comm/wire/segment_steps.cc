// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/segment_steps.h"

namespace lockstep::wire {
namespace {

constexpr std::size_t kLeastPieceBytes = 4 << 10;

}  // namespace

bool SegmentSteps::has_room_for_rows(const comm::CollectiveArgs& args, const Hosts& hosts) {
  return window_bytes(hosts) / kSegmentDepth / static_cast<std::size_t>(args.size) >= kLeastPieceBytes;
}

void SegmentSteps::post_send(Segment& segment, std::size_t host, const std::byte* data, std::size_t bytes,
                             std::uint64_t trip, bool is_eager) {
  if (bytes == 0) return;
  segment.transfers.push_back(wire_.send({rank_on(host), data, bytes, is_eager}, segment.tag(trip)));
}

void SegmentSteps::post_receive(Segment& segment, std::size_t host, std::byte* data, std::size_t bytes,
                                std::uint64_t trip, bool is_eager) {
  if (bytes == 0) return;
  segment.transfers.push_back(wire_.receive({rank_on(host), data, bytes, is_eager}, segment.tag(trip)));
}

std::vector<std::byte*> SegmentSteps::slots(const Segment& segment) const {
  std::vector<std::byte*> slots;
  for (std::size_t i = 0; i < hosts_.neighbours().size(); ++i) {
    slots.push_back(memory_->window(i) + segment.number % kSegmentDepth * slot_bytes());
  }
  return slots;
}

void SegmentSteps::copy_to_all(const Segment& segment, const std::byte* from, std::size_t offset, std::size_t bytes) {
  for (std::byte* const memory : segment.memory) comm::copy_bytes(memory + offset, from + offset, bytes);
}

}  // namespace lockstep::wire
