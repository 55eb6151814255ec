// SPDX-License-Identifier: Apache-2.0
// Parsers of the hosts that a user names, in -H or in a file in Open MPI's format. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

struct HostEntry {
  std::string name = {};          // name in the form that the remote shell accepts
  std::optional<int> slots = {};  // number of ranks on the host; nullopt: --nproc-per-node decides
  bool operator==(const HostEntry&) const = default;
};

// Parses "host0:4,host1", with IPv6 addresses in brackets. The slots of a host that is listed twice are added. Throws
// InvalidArgument with the item and the reason.
std::vector<HostEntry> parse_hosts(std::string_view text);
// Parses lines "host slots=4" or, as MPICH writes them, "host:4", with comments behind '#'; max_slots is accepted and
// ignored. Throws as parse_hosts() does, with the line's number.
std::vector<HostEntry> parse_hostfile(std::string_view text, std::string_view path);

// Returns the first `ranks` slots, in order; hosts without a rank are left out. Throws InvalidArgument if there are
// fewer slots, or if a host has no number of slots.
std::vector<HostEntry> first_slots(const std::vector<HostEntry>& hosts, int ranks);

}  // namespace lockstep::launcher
