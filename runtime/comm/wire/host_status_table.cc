// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/host_status_table.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <utility>

namespace lockstep::wire {
namespace {

// A LeftAfter is the number of a rank's last collective plus one, or 0 if the rank has not left the group.
using LeftAfter = std::atomic<std::uint64_t>;

std::size_t all_ranks(const Hosts& hosts) {
  std::size_t ranks = 0;
  for (const auto& of_host : hosts.ranks) ranks += of_host.size();
  return ranks;
}

}  // namespace

// Parts holds the number of notices that were written to the table. In memory, Parts is followed by one LeftAfter for
// each rank of the group.
struct alignas(64) HostStatusTable::Parts {
  std::atomic<std::uint64_t> told;

  LeftAfter* left() { return reinterpret_cast<LeftAfter*>(this + 1); }
};

std::size_t HostStatusTable::bytes_for(const Hosts& hosts) {
  return sizeof(Parts) + all_ranks(hosts) * sizeof(LeftAfter);
}

void HostStatusTable::format(std::byte* memory, const Hosts& hosts) {
  if (hosts.local != 0) return;
  auto* const parts = new (memory) Parts{};
  std::uninitialized_value_construct_n(parts->left(), all_ranks(hosts));
}

HostStatusTable::HostStatusTable(std::byte* memory, const Hosts& hosts, std::vector<DoorbellButton> bells)
    : parts_(reinterpret_cast<Parts*>(memory)), local_(hosts.local), bells_(std::move(bells)) {}

void HostStatusTable::publish() {
  parts_->told.fetch_add(1, std::memory_order_release);
  for (std::size_t i = 0; i < bells_.size(); ++i) {
    if (i != local_) bells_[i].ring();
  }
}

void HostStatusTable::tell_left(int rank, std::uint64_t last) {
  parts_->left()[rank].store(last + 1, std::memory_order_release);
  publish();
}

std::optional<std::uint64_t> HostStatusTable::left_after(int rank) const {
  const std::uint64_t word = parts_->left()[rank].load(std::memory_order_acquire);
  if (word == 0) return {};
  return word - 1;
}

bool HostStatusTable::has_news() {
  const std::uint64_t told = parts_->told.load(std::memory_order_acquire);
  return std::exchange(seen_, told) != told;
}

}  // namespace lockstep::wire
