// SPDX-License-Identifier: Apache-2.0
// The ports at which this process listens where none is named: LOCKSTEP_PORT_RANGE, for hosts with a firewall between
// them. Connections come from any port that the kernel gives them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/base/environment.h"

namespace lockstep::net {

struct PortRange {
  std::uint16_t first = 1;
  std::uint16_t last = 65535;  // at least `first`

  bool operator==(const PortRange&) const = default;
  int size() const { return last - first + 1; }
  // "LOCKSTEP_PORT_RANGE=29500-29600", for messages.
  std::string describe() const;
};

// Nothing if the variable is not set: any port. InvalidArgument if it is not a range of ports.
std::optional<PortRange> port_range(const Environment& environment);

}  // namespace lockstep::net
