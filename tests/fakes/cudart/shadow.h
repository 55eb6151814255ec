// SPDX-License-Identifier: Apache-2.0
// Who last wrote and who has read each byte of one allocation.
//
// Threads: the caller's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/fakes/cudart/vector_clock.h"

namespace lockstep::fake_cuda {

// An operation of a stream.
struct Access {
  std::uint32_t stream = 0;
  std::uint64_t number = 0;  // in its stream
  std::shared_ptr<const std::string> what;
};

struct Conflict {
  Access earlier;
  bool earlier_writes = false;
  std::size_t offset = 0;  // of the first byte of both
};

class Shadow {
 public:
  explicit Shadow(std::size_t bytes) : bytes_(bytes) { segments_[0]; }
  // Takes note of an access, or says what it is in no order with; `clock` is what is done before it. What conflicts
  // with an access is not taken note of: it must not cover that one up for those that follow.
  std::optional<Conflict> access(std::size_t offset, std::size_t bytes, bool writes, const Access& access,
                                 const VectorClock& clock);
  // An access that `clock` does not know to be done.
  std::optional<Conflict> unfinished(const VectorClock& clock) const;

 private:
  struct Segment {
    std::optional<Access> write;
    std::vector<Access> reads;  // since then, the last one of each stream
  };
  using Segments = std::map<std::size_t, Segment>;  // by the first byte; each ends where the next begins
  // Makes `offset` the beginning of a segment.
  Segments::iterator cut(std::size_t offset);

  std::size_t bytes_;
  Segments segments_;
};

}  // namespace lockstep::fake_cuda
