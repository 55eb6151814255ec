// SPDX-License-Identifier: Apache-2.0
// move() moves the data of a collective between ranks over a wire, after all ranks have agreed on the collective.
// Collectives that are cut into segments use segment_pipeline.h instead of move().
//
// The ranks divide a reduction into one range for each rank. For its own range, every rank receives the other ranks'
// data, and reduces the data in the fixed order of comm/reduction.h. Every rank then sends its result to the ranks that
// need the result. A reduction that is divided into ranges sends as many bytes as a ring all-reduce, but needs only two
// steps, and gives the same bits as a reduction in shared memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/comm/reduction.h"
#include "runtime/comm/transfer.h"
#include "runtime/comm/wire/host_memory.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

// The largest number of bytes that a reduction moves at once. Each rank needs about kReductionBytes of memory for other
// ranks' data.
inline constexpr std::size_t kReductionBytes = 16 << 20;

// A ScratchBuffer is memory that is reused from one collective to the next, without being cleared.
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

// Reduces the ranks' `sources` into `result` in the order in which segments are reduced: first over the ranks of each
// host in `hosts`, then over the hosts. If `hosts` is null, reduce_by_hosts() reduces over all ranks in rank order.
void reduce_by_hosts(const comm::Reduction& reduction, const Hosts* hosts, std::span<const std::byte* const> sources,
                     std::byte* result, std::size_t count);

// Moves all data of a collective. Every rank calls move() on its communication thread. `hosts` is passed to
// reduce_by_hosts(). Throws Broken.
void move(const comm::CollectiveArgs& args, const Hosts* hosts, Wire& wire, ScratchBuffer& scratch);

}  // namespace lockstep::wire
