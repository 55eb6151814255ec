// SPDX-License-Identifier: Apache-2.0
// Notices that the ranks of one host give each other of the group's end, in memory that they share: which ranks have
// left. They have no connections among them, nor with every rank of the other hosts.
//
// A rank that leaves tells so itself, and on another host the relay of its announcements does (op_header_table.h).
// The rank that tells rings for all ranks of the host.
//
// Words are stored with release after what they stand for, and read with acquire before it.
//
// Threads: any, but for has_news(): one at a time.
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
  // Starts the life of this rank's part, in memory of zeros: before any rank of the host uses it.
  static void format(std::byte* memory, const Hosts& hosts);

  // `memory` and `bells`, those of the host's ranks, outlive it.
  HostStatusTable(std::byte* memory, const Hosts& hosts, std::vector<DoorbellButton> bells);

  // `rank` has left after collective `last`. By one rank of the host.
  void tell_left(int rank, std::uint64_t last);
  std::optional<std::uint64_t> left_after(int rank) const;
  // True if anything has been told since the last call.
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
