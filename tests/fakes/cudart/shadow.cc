// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/shadow.h"

#include <algorithm>

namespace lockstep::fake_cuda {

Shadow::Segments::iterator Shadow::cut(std::size_t offset) {
  if (offset >= bytes_) return segments_.end();
  const auto at = std::prev(segments_.upper_bound(offset));
  if (at->first == offset) return at;
  return segments_.emplace_hint(std::next(at), offset, at->second);
}

std::optional<Conflict> Shadow::access(std::size_t offset, std::size_t bytes, bool writes, const Access& access,
                                       const VectorClock& clock) {
  std::optional<Conflict> conflict;
  const auto begin = cut(offset);
  const auto end = cut(offset + bytes);
  const auto compare = [&](const Access& earlier, bool earlier_writes, std::size_t at) {
    if (!conflict && !clock.covers(earlier.stream, earlier.number)) conflict = {earlier, earlier_writes, at};
  };
  for (auto at = begin; at != end; ++at) {
    const Segment& segment = at->second;
    if (segment.write) compare(*segment.write, true, at->first);
    if (!writes) continue;
    for (const Access& read : segment.reads) compare(read, false, at->first);
  }
  if (conflict) return conflict;
  for (auto at = begin; at != end; ++at) {
    Segment& segment = at->second;
    if (writes) {
      segment.write = access;
      segment.reads.clear();
      continue;
    }
    const auto same = std::find_if(segment.reads.begin(), segment.reads.end(),
                                   [&](const Access& r) { return r.stream == access.stream; });
    if (same == segment.reads.end()) {
      segment.reads.push_back(access);
    } else {
      *same = access;
    }
  }
  // One write, one segment.
  if (writes && begin != end) segments_.erase(std::next(begin), end);
  return std::nullopt;
}

std::optional<Conflict> Shadow::unfinished(const VectorClock& clock) const {
  for (const auto& [offset, segment] : segments_) {
    if (segment.write && !clock.covers(segment.write->stream, segment.write->number)) {
      return Conflict{*segment.write, true, offset};
    }
    for (const Access& read : segment.reads) {
      if (!clock.covers(read.stream, read.number)) return Conflict{read, false, offset};
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::fake_cuda
