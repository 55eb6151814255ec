// SPDX-License-Identifier: Apache-2.0
// HostStatusTable is a table in shared memory that tells the ranks of one host which ranks have left the group.
// The ranks of a host need HostStatusTable because they have no connections with each other, and are connected to only
// some ranks of the other hosts.
//
// When a rank leaves the group, the rank writes a notice into the table of its own host. On each other host, the rank
// that relays the leaving rank's announcements (op_header_table.h) writes the notice into the table. A rank that writes
// a notice into the table rings the doorbells of all other ranks of its host.
//
// An atomic word that guards other memory is stored with release order after the memory is written, and loaded with
// acquire order before the memory is read.
//
// Threads: any thread may call these functions. Only one thread at a time may call has_news().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/comm/wire/doorbell.h"
#include "runtime/comm/wire/host_memory.h"

namespace lockstep::wire {

class HostStatusTable {
 public:
  static std::size_t bytes_for(const Hosts& hosts);
  // Formats this rank's part of the table. REQUIRES: all bytes of `memory` are zero, and no rank of the host uses the
  // table yet.
  static void format(std::byte* memory, const Hosts& hosts);

  // `memory` and the doorbells of the host's ranks must outlive the table.
  HostStatusTable(std::byte* memory, const Hosts& hosts, std::vector<DoorbellButton> bells);

  // Writes into the table the notice that `rank` has left the group after collective `last`. Only one rank of the host
  // writes the notice about `rank`.
  void tell_left(int rank, std::uint64_t last);
  std::optional<std::uint64_t> left_after(int rank) const;
  // Returns true if a notice was written since the last call of has_news().
  bool has_news();

 private:
  struct Parts;

  void publish();

  Parts* const parts_;
  const std::size_t local_;
  const std::vector<DoorbellButton> bells_;
  std::uint64_t seen_ = 0;
};

}  // namespace lockstep::wire
