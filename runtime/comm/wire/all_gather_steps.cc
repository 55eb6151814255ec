// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/all_gather_steps.h"

namespace lockstep::wire {

void AllGatherSteps::begin(Segment& segment) {
  segment.memory = slots(segment);
  if (!is_in_rail()) return;
  segment.range = {0, segment.chunk.length};
  for_other_hosts([&](std::size_t host) {
    for_carried_rows(segment, host, [&](std::size_t, std::size_t place) {
      post_receive(segment, host, segment.memory[hosts_.local] + place, piece_bytes(segment), 0);
    });
  });
}

void AllGatherSteps::fill(const Segment& segment) {
  comm::copy_bytes(segment.memory[hosts_.local] + static_cast<std::size_t>(args_.rank) * piece_bytes(segment),
                   data_of(args_.input) + segment.chunk.offset * args_.element_bytes(), piece_bytes(segment));
}

void AllGatherSteps::send(Segment& segment) {
  for_other_hosts([&](std::size_t host) {
    for_carried_rows(segment, hosts_.host, [&](std::size_t owner, std::size_t place) {
      post_send(segment, host, segment.memory[owner] + place, piece_bytes(segment), 0);
    });
  });
}

void AllGatherSteps::broadcast_to_host(const Segment& segment) {
  for (std::size_t host = 0; host < hosts_.ranks.size(); ++host) {
    for_carried_rows(segment, host, [&](std::size_t owner, std::size_t place) {
      const std::byte* const from = segment.memory[host == hosts_.host ? owner : hosts_.local];
      copy_to_all(segment, from, place, piece_bytes(segment));
    });
  }
}

void AllGatherSteps::copy_out(const Segment& segment) {
  const std::size_t element = args_.element_bytes();
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(args_.size); ++rank) {
    comm::copy_bytes(data_of(args_.output) + (rank * args_.count() + segment.chunk.offset) * element,
                     segment.memory[hosts_.local] + rank * piece_bytes(segment), piece_bytes(segment));
  }
}

}  // namespace lockstep::wire
