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
#include <string>
#include <string_view>

namespace lockstep::net {

// Peers whose round trip takes less are near. After a pause Reno begins again with ten segments, and needs some round
// trips to fill the path again: little next to BBR's pacing while they are short.
inline constexpr std::chrono::microseconds kNear{500};

// Returns true if a connection that has the algorithm `current` takes Reno instead.
bool takes_reno(std::string_view current, std::chrono::microseconds round_trip);
// Chooses for what this end of a connected TCP socket sends. Returns the algorithm that it has now, as far as the
// kernel tells.
std::string choose_congestion_control(int socket);

}  // namespace lockstep::net
