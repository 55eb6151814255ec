// SPDX-License-Identifier: Apache-2.0
// The differences between the clocks of several hosts, found from the collectives in their ranks' traces. Pure.
//
// No rank has a bucket's result before every rank has launched it. So each bucket says of two hosts' clocks what their
// difference is at least and at most, as far apart as the bucket was on its way: as one question and answer of NTP. The
// quickest buckets of each few seconds say it best; between these the difference is a straight line, for quartzes
// drift.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launcher/observe/run_traces.h"

namespace lockstep::launcher {

class HostClocks {
 public:
  // Times of ns of each host's clock; the clock of the first trace's host is that of all. Of a host that shares no
  // bucket with it the wall clock counts.
  explicit HostClocks(const std::vector<RunTrace>& traces);

  // A time of `host`'s clock by the common one.
  std::int64_t common(const std::string& host, std::int64_t time) const;
  // By how much a bucket's launch on one host may stand behind its end on another, and any other time be wrong: ns. 0
  // with one host.
  std::int64_t error() const { return error_; }
  // Hosts for which nothing but their wall clocks is known.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  struct Knot {
    std::int64_t time = 0;   // of the host's clock
    std::int64_t ahead = 0;  // what its clock is ahead of the common one then
  };
  using Line = std::vector<Knot>;  // by time, at least one; before the first and behind the last it is level
  static std::int64_t ahead_at(const Line& line, std::int64_t time);

  std::map<std::string, Line> lines_;
  std::int64_t error_ = 0;
  std::vector<std::string> unknown_;
};

}  // namespace lockstep::launcher
