// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/reduce_scatter_steps.h"

#include <algorithm>

#include "runtime/comm/reduction.h"

namespace lockstep::wire {

ReduceScatterSteps::ReduceScatterSteps(const comm::CollectiveArgs& args, const StepContext& context,
                                       std::vector<ScratchBuffer>& scratch)
    : SegmentSteps(args, context, Route::windows), sums_(comm::dtype_of_partials(args.reduction)), scratch_(scratch) {}

void ReduceScatterSteps::begin(Segment& segment) {
  segment.memory = slots(segment);
  if (!is_in_rail()) return;
  segment.range = {0, segment.chunk.length};
  for_other_hosts([&](std::size_t host) {
    for_carried_rows(segment, hosts_.host, [&](std::size_t owner, std::size_t) {
      post_receive(segment, host, sums_of(segment, Way::in, host, owner), sum_bytes(segment), 0);
    });
  });
}

void ReduceScatterSteps::fill(const Segment& segment) {
  const std::size_t element = args_.element_bytes();
  for (std::size_t row = 0; row < static_cast<std::size_t>(args_.size); ++row) {
    comm::copy_bytes(segment.memory[hosts_.local] + row * piece_bytes(segment),
                     data_of(args_.input) + (row * args_.count() + segment.chunk.offset) * element,
                     piece_bytes(segment));
  }
}

void ReduceScatterSteps::send(Segment& segment) {
  const auto add_up = [&](std::size_t host, std::size_t owner, std::size_t offset, Way way) {
    std::vector<const std::byte*> sources;
    for (const std::byte* const memory : segment.memory) sources.push_back(memory + offset);
    std::byte* const sums = sums_of(segment, way, host, owner);
    comm::reduce_to_partial(args_.reduction, sources, sums, segment.chunk.length);
    return sums;
  };
  for_other_hosts([&](std::size_t host) {
    for_carried_rows(segment, host, [&](std::size_t owner, std::size_t offset) {
      post_send(segment, host, add_up(host, owner, offset, Way::out), sum_bytes(segment), 0);
    });
  });
  // Store this host's sums of its own rows among the sums that arrive from other hosts (Way::in).
  for_carried_rows(segment, hosts_.host,
                   [&](std::size_t owner, std::size_t offset) { add_up(hosts_.host, owner, offset, Way::in); });
}

// Adds up the hosts' sums in the order of the hosts, which gives the same bits as an all-reduce. The result may
// overwrite the row in the window of the row's owner, because no other rank still reads the row.
void ReduceScatterSteps::exchange_results(Segment& segment) {
  for_carried_rows(segment, hosts_.host, [&](std::size_t owner, std::size_t offset) {
    std::vector<const std::byte*> sources;
    for (std::size_t host = 0; host < hosts_.ranks.size(); ++host) {
      sources.push_back(sums_of(segment, Way::in, host, owner));
    }
    std::byte* const result = segment.memory[owner] + offset;
    comm::reduce_partials(args_.reduction, sources, std::span<std::byte* const>(&result, 1), segment.chunk.length);
  });
}

void ReduceScatterSteps::copy_out(const Segment& segment) {
  comm::copy_bytes(data_of(args_.output) + segment.chunk.offset * args_.element_bytes(),
                   segment.memory[hosts_.local] + static_cast<std::size_t>(args_.rank) * piece_bytes(segment),
                   piece_bytes(segment));
}

std::size_t ReduceScatterSteps::sum_bytes(const Segment& segment) const {
  return segment.chunk.length * size_of(sums_);
}

std::byte* ReduceScatterSteps::sums_of(const Segment& segment, Way way, std::size_t host, std::size_t owner) {
  const std::size_t stride = (sum_bytes(segment) + 63) / 64 * 64;
  std::size_t rows = 0;  // the most rows of a host that this rank transfers
  for (const std::vector<int>& ranks : hosts_.ranks) {
    rows = std::max(rows, (ranks.size() - hosts_.local + hosts_.rails - 1) / hosts_.rails);
  }
  const std::size_t row = (owner - hosts_.local) / hosts_.rails;
  const std::size_t place = ((way == Way::out ? 0 : hosts_.ranks.size()) + host) * rows + row;
  return scratch_[segment.number % kSegmentDepth].take(2 * hosts_.ranks.size() * rows * stride) + place * stride;
}

}  // namespace lockstep::wire
