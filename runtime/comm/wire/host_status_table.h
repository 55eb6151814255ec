// SPDX-License-Identifier: Apache-2.0
// Notices of the group's end, in memory that the ranks of one host share: which ranks have left. These ranks have no
// connections with each other, nor with every rank of the other hosts.
//
// A rank that leaves gives its notice itself; on another host the relay of its announcements gives it
// (op_header_table.h). The rank that gives the notice rings for all ranks of the host.
//
// Words are stored with release after the memory that they stand for, and read with acquire before it.
//
// Threads: any; has_news() one at a time.
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
  // Formats this rank's part, in memory of zeros: before any rank of the host uses it.
  static void format(std::byte* memory, const Hosts& hosts);

  // `memory` and the `bells` of the host's ranks outlive it.
  HostStatusTable(std::byte* memory, const Hosts& hosts, std::vector<DoorbellButton> bells);

  // Gives the notice that `rank` has left after collective `last`. One rank of the host calls it.
  void tell_left(int rank, std::uint64_t last);
  std::optional<std::uint64_t> left_after(int rank) const;
  // Whether a notice was given since the last call.
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
