// SPDX-License-Identifier: Apache-2.0
// Names that tell one machine and one process from another.
#pragma once

#include <string>

#include "runtime/base/internal_api.h"

namespace lockstep {

// The host's name as gethostname(2) has it, in one line that a message may show; "localhost" where it has none.
LOCKSTEP_INTERNAL_API std::string host_name();
// Changes at each boot and differs between machines: /proc/sys/kernel/random/boot_id.
// Equal on two processes exactly if they share a kernel, whatever their host names are.
LOCKSTEP_INTERNAL_API std::string boot_id();
// Equal on two processes of one kernel exactly if they share a network: /proc/self/ns/net. Two containers don't, unless
// they were told to, and reach each other neither over loopback nor over abstract Unix sockets.
std::string network_namespace();

}  // namespace lockstep
