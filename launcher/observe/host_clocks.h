// SPDX-License-Identifier: Apache-2.0
// The differences between the clocks of several hosts, found from the collectives in their ranks' traces. Pure.
//
// No rank has a bucket's result before every rank has launched it. So each bucket bounds the difference of two hosts'
// clocks from below and above, and the distance of the bounds is the time that the bucket was under way, as with a
// question and an answer in NTP. The quickest buckets of each few seconds give the tightest bounds; between these the
// difference is a straight line, since quartzes drift.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "launcher/observe/run_traces.h"

namespace lockstep::launcher {

// A bucket on one host: the time at which the last of its ranks launched it, and the time at which the first had its
// result, by the host's clock.
struct Passage {
  std::int64_t launched = std::numeric_limits<std::int64_t>::min();
  std::int64_t finished = std::numeric_limits<std::int64_t>::max();
};

struct BucketKey {
  int start = 1;
  std::int64_t step = 0;  // TracedStep::number
  std::size_t bucket = 0;
  auto operator<=>(const BucketKey&) const = default;
};
using Passages = std::map<BucketKey, Passage>;

std::map<std::string, Passages> passages_by_host(std::span<const RunTrace> traces);

class HostClocks {
 public:
  // The traces have times in ns of each host's clock; the clock of the first trace's host is the common one. For a host
  // that shares no bucket with that host, the wall clock is used.
  explicit HostClocks(const std::vector<RunTrace>& traces);

  // Converts a time of `host`'s clock to the common clock.
  std::int64_t common(const std::string& host, std::int64_t time) const;
  // Returns the error of converted times in ns: a bucket's launch on one host may appear that much after its end on
  // another. 0 with one host.
  std::int64_t error() const { return error_; }
  // Hosts whose wall clock is the only information about their clock.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  struct Knot {
    std::int64_t time = 0;   // time of the host's clock
    std::int64_t ahead = 0;  // by how much the host's clock is ahead of the common one at that time
  };
  using Line = std::vector<Knot>;  // by time, at least one; constant before the first and after the last
  static std::int64_t ahead_at(const Line& line, std::int64_t time);

  std::map<std::string, Line> lines_;
  std::int64_t error_ = 0;
  std::vector<std::string> unknown_;
};

}  // namespace lockstep::launcher
