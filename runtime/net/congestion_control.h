// SPDX-License-Identifier: Apache-2.0
// Which congestion control the connections between ranks have.
//
// BBR finds out what a path carries by pacing and probing. That is for long paths. Between hosts that are near it holds
// bursts of data, which is what a collective sends, to a half or a third of what the cable takes, and costs a timer for
// each of their parts. So where a system's default is BBR, connections to near peers get Reno, which every kernel has
// and every process may take. CUBIC grows as Reno does where a round trip is short (RFC 9438, 4.3), but leaves its slow
// start early where processes compete for cores (HyStart takes their delays for the network's), behind each pause anew.
// BBR: Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016. Reno: RFC 5681.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/environment.h"

namespace lockstep::net {

class CongestionControl {
 public:
  // Peers whose round trip takes less are near. Behind a pause Reno begins anew with ten segments, and needs some round
  // trips to fill the path again: little beside BBR's pacing while they are short.
  static constexpr std::chrono::microseconds kNear{500};

  // LOCKSTEP_TCP_CONGESTION: "auto" (the default) is what is said above, "system" what the system has, and any other
  // name that one, for all connections. InvalidArgument if the kernel does not let this process take it.
  static CongestionControl of(const Environment& environment);

  // The algorithm to take in place of `current`; nothing if that stays.
  std::optional<std::string> instead_of(std::string_view current, std::chrono::microseconds round_trip) const;
  // For what this end of a connected TCP socket sends. Returns the one that it has now, as far as the kernel says.
  // SystemError if it no longer grants the one that was named.
  std::string apply(int socket) const;

 private:
  explicit CongestionControl(std::string name) : name_(std::move(name)) {}

  std::string name_;  // auto and system, too
};

}  // namespace lockstep::net
