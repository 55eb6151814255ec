// SPDX-License-Identifier: Apache-2.0
// The settings of init_process_group, from its arguments and the environment. Pure functions.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/device/device.h"
#include "runtime/net/address.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/init_method.h"

namespace lockstep {

inline constexpr std::chrono::minutes kDefaultTimeout{5};

struct InitSettings {
  std::chrono::nanoseconds timeout = kDefaultTimeout;
  rendezvous::InitMethod method;
  rendezvous::IdentityOverrides overrides;
  DeviceId device;
  std::string device_text = "cpu";    // as it was asked for
  bool device_by_local_rank = false;  // "cuda" without an index: each rank of a host takes its own
  bool device_is_auto = false;        // that if each rank has one, else the CPU; `device` is the CPU
  bool detect_silence = true;         // LOCKSTEP_LIVENESS: "off" waits for ranks that don't answer
  // A number there: after so long a rank that doesn't answer is lost.
  std::chrono::nanoseconds silence = std::chrono::seconds(2);
  std::chrono::milliseconds hang_timeout{0};  // LOCKSTEP_HANG_TIMEOUT; 0, as by default: none
  std::optional<net::HostPort> relay = {};    // LOCKSTEP_MEMBERSHIP: of membership, at this host's launcher
};

// Arguments win over the URL's parameters, which must not contradict them, and over the environment.
// Throws InvalidArgument with the value and what was wanted; BackendUnavailable for a device that this build can't use.
InitSettings resolve(const InitOptions& options, const Environment& environment);

// "rank 2/4 (local 2/4) from Open MPI, store 127.0.0.1:41233, backend shm, 1 thread".
std::string start_line(const rendezvous::Identity& identity, const std::string& store, std::string_view backend,
                       int threads);

}  // namespace lockstep
