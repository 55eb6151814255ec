// SPDX-License-Identifier: Apache-2.0
// HostStatusTable tells the ranks of one host, in memory that they share, which ranks have left the group. The ranks of
// a host have no connections with each other, nor with every rank of the other hosts.
//
// A rank that leaves gives the notice on its host. On each other host the relay of the rank's announcements gives the
// notice (op_header_table.h). The rank that gives the notice rings the bells of all ranks of the host.
//
// Words are stored with release after the memory that they stand for, and read with acquire before that memory.
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
  // Formats this rank's part of the table. REQUIRES: `memory` is zero, and no rank of the host uses the table yet.
  static void format(std::byte* memory, const Hosts& hosts);

  // `memory` and the bells of the host's ranks must outlive the table.
  HostStatusTable(std::byte* memory, const Hosts& hosts, std::vector<DoorbellButton> bells);

  // Gives the notice that `rank` has left after collective `last`. Only one rank of the host gives this notice.
  void tell_left(int rank, std::uint64_t last);
  std::optional<std::uint64_t> left_after(int rank) const;
  // Returns whether a notice was given since the last has_news().
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
