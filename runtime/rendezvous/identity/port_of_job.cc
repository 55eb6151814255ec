// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/identity/port_of_job.h"

#include "runtime/base/hash.h"

namespace lockstep::rendezvous {

int port_of_job(std::string_view job) {
  constexpr int kPorts = kLastJobPort - kFirstJobPort + 1;
  return kFirstJobPort + static_cast<int>(hash64(job) % kPorts);
}

}  // namespace lockstep::rendezvous
