// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/host_status_table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "runtime/comm/failure/failure.h"

namespace lockstep::wire {
namespace {

struct alignas(64) FailureText {
  std::atomic<std::uint64_t> bytes;  // 0: none
  std::array<char, comm::Failure::kMostBytes> text;
};

using LeftAfter = std::atomic<std::uint64_t>;  // one more than the number of the rank's last collective; 0: it is there

std::size_t all_ranks(const Hosts& hosts) {
  std::size_t ranks = 0;
  for (const auto& of_host : hosts.ranks) ranks += of_host.size();
  return ranks;
}

}  // namespace

// The count of what has been told; then a FailureText for each rank of the host, and a LeftAfter for each rank of all.
struct alignas(64) HostStatusTable::Parts {
  std::atomic<std::uint64_t> told;

  FailureText* failures() { return reinterpret_cast<FailureText*>(this + 1); }
  LeftAfter* left(std::size_t ranks_of_host) { return reinterpret_cast<LeftAfter*>(failures() + ranks_of_host); }
};

std::size_t HostStatusTable::bytes_for(const Hosts& hosts) {
  return sizeof(Parts) + hosts.neighbours().size() * sizeof(FailureText) + all_ranks(hosts) * sizeof(LeftAfter);
}

void HostStatusTable::format(std::byte* memory, const Hosts& hosts) {
  auto* const parts = reinterpret_cast<Parts*>(memory);
  new (parts->failures() + hosts.local) FailureText{};
  if (hosts.local != 0) return;
  new (parts) Parts{};
  std::uninitialized_value_construct_n(parts->left(hosts.neighbours().size()), all_ranks(hosts));
}

HostStatusTable::HostStatusTable(std::byte* memory, const Hosts& hosts, std::vector<DoorbellButton> bells)
    : parts_(reinterpret_cast<Parts*>(memory)),
      ranks_(hosts.neighbours().size()),
      local_(hosts.local),
      bells_(std::move(bells)) {}

void HostStatusTable::publish() {
  parts_->told.fetch_add(1, std::memory_order_release);
  for (std::size_t i = 0; i < bells_.size(); ++i) {
    if (i != local_) bells_[i].ring();
  }
}

void HostStatusTable::tell_left(int rank, std::uint64_t last) {
  parts_->left(ranks_)[rank].store(last + 1, std::memory_order_release);
  publish();
}

std::optional<std::uint64_t> HostStatusTable::left_after(int rank) const {
  const std::uint64_t word = parts_->left(ranks_)[rank].load(std::memory_order_acquire);
  if (word == 0) return {};
  return word - 1;
}

void HostStatusTable::tell_failure(std::string_view cause) {
  FailureText& own = parts_->failures()[local_];
  const std::size_t bytes = std::min(cause.size(), own.text.size());
  std::copy_n(cause.begin(), bytes, own.text.begin());
  own.bytes.store(bytes, std::memory_order_release);
  publish();
}

std::optional<std::string> HostStatusTable::failure() const {
  for (std::size_t i = 0; i < ranks_; ++i) {
    const FailureText& one = parts_->failures()[i];
    if (const std::uint64_t bytes = one.bytes.load(std::memory_order_acquire))
      return std::string(one.text.data(), bytes);
  }
  return {};
}

bool HostStatusTable::has_news() {
  const std::uint64_t told = parts_->told.load(std::memory_order_acquire);
  return std::exchange(seen_, told) != told;
}

}  // namespace lockstep::wire
