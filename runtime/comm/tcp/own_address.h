// SPDX-License-Identifier: Apache-2.0
// Which of this host's addresses the ranks connect at.
#pragma once

#include <string>

#include "lockstep/base/environment.h"

namespace lockstep::tcp {

struct OwnAddress {
  std::string interface = {};  // "eth0", or:
  std::string address = {};    // "10.0.0.7"

  // "interface eth0 (GLOO_SOCKET_IFNAME)", "address 10.0.0.7".
  std::string describe() const;
};

// GLOO_SOCKET_IFNAME names an interface (of a list, the first), as for PyTorch; else it is the address from which this
// host reaches the job's store, or loopback where that is in this process. A pure function.
OwnAddress choose_own_address(const Environment& environment, const std::string& local_address);

}  // namespace lockstep::tcp
