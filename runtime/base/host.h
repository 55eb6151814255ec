// What tells one machine and one process from another.
#pragma once

#include <string>

namespace lockstep {

// The host's name as gethostname(2) has it.
std::string host_name();
// Changes at each boot and differs between machines: /proc/sys/kernel/random/boot_id.
// Equal on two processes exactly if they share a kernel, whatever their host names are.
std::string boot_id();

}  // namespace lockstep
