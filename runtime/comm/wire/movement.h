// SPDX-License-Identifier: Apache-2.0
// How the data of a collective moves between ranks over a wire, after all have agreed on it, if it does not go by
// segments (segment_pipeline.h).
//
// The ranks divide a reduction: every rank gets all others' data for its share, reduces it in the fixed order of
// comm/reduction.h, and sends the result to the others. That sends a ring's bytes in two steps, and gives the same bits
// as in shared memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/comm/reduction.h"
#include "runtime/comm/transfer.h"
#include "runtime/comm/wire/host_memory.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

// The bytes of a reduction that are under way at once: the memory of each rank for the others' data.
inline constexpr std::size_t kReductionBytes = 16 << 20;

// Memory that is kept from one collective to the next, without being cleared.
class ScratchBuffer {
 public:
  std::byte* take(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset(new std::byte[bytes]);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
};

// Reduces the ranks' `sources` into `result` in the order of the segments: over the ranks of each of `hosts`, then over
// the hosts; with null `hosts` over all ranks in their order.
void reduce_by_hosts(const comm::Reduction& reduction, const Hosts* hosts, std::span<const std::byte* const> sources,
                     std::byte* result, std::size_t count);

// Moves all data of a collective. Every rank calls it on the communication thread. `hosts`: as in reduce_by_hosts().
// Throws Broken.
void move(const comm::CollectiveArgs& args, const Hosts* hosts, Wire& wire, ScratchBuffer& scratch);

}  // namespace lockstep::wire
