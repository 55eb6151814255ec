// SPDX-License-Identifier: Apache-2.0
// A port for launchers that give the job a name and no port. Pure.
#pragma once

#include <string_view>

namespace lockstep::rendezvous {

// Below the ports that Linux gives out by itself (32768 to 60999), above those of most services.
inline constexpr int kFirstJobPort = 20000;
inline constexpr int kLastJobPort = 31999;

// The same on every host for the same name. Two jobs on one host may get the same one: 1 in 12,000 for each pair.
int port_of_job(std::string_view job);

}  // namespace lockstep::rendezvous
