// SPDX-License-Identifier: Apache-2.0
// The hosts that a user names, in -H or in a file as Open MPI has it. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

struct HostEntry {
  std::string name = {};          // as the remote shell takes it
  std::optional<int> slots = {};  // ranks that it takes; nothing: --nproc-per-node says it
  bool operator==(const HostEntry&) const = default;
};

// "host0:4,host1", an IPv6 address in brackets. The slots of a host that comes twice are added. Throws InvalidArgument
// with the item and what is wrong with it.
std::vector<HostEntry> parse_hosts(std::string_view text);
// Lines "host slots=4" or, as MPICH has it, "host:4", with comments behind '#'; max_slots is read and not needed. As
// parse_hosts(), naming the line.
std::vector<HostEntry> parse_hostfile(std::string_view text, std::string_view path);

// The first `ranks` slots, in order; hosts without a rank are left out. Throws InvalidArgument if there are fewer, or
// if a host's slots are not said.
std::vector<HostEntry> first_slots(const std::vector<HostEntry>& hosts, int ranks);

}  // namespace lockstep::launcher
