// SPDX-License-Identifier: Apache-2.0
// Groups over several hosts of several ranks: the ranks are threads, a host is those that share memory, and the wire
// between hosts is memory too.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/hosts/shared_within_hosts.h"
#include "runtime/comm/wire/process_group_wire.h"
#include "tests/unit/comm/wire/memory_wire.h"

namespace lockstep::wire {

using Body = std::function<void(ProcessGroup&, const Hub&)>;

inline void on_hosts(const std::vector<int>& ranks_of_hosts, const Body& body) {
  const rendezvous::Roster roster = roster_of(ranks_of_hosts);
  const Hub hub = std::make_shared<MemoryWire::Hub>(roster.size());
  on_ranks(roster, [&](const GroupContext& context, const Deadline& deadline) {
    auto wire = std::make_unique<MemoryWire>(hub, context.identity.rank);
    const auto group = ProcessGroupWire::create("memory", context, std::move(wire), deadline, start_own_thread,
                                                shared_within_hosts(context, deadline));
    body(*group, hub);
  });
}

inline float noise(int rank, std::size_t element) {
  return std::sin(static_cast<float>(element * 7 + static_cast<std::size_t>(rank) * 1000003)) *
         std::pow(10.0f, static_cast<float>(element % 9) - 4);
}

inline std::vector<float> noise_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = noise(rank, i);
  return values;
}

inline std::string text_of(const std::vector<int>& hosts) {
  std::string text = std::to_string(hosts.size()) + " hosts of";
  for (const int ranks : hosts) text += " " + std::to_string(ranks);
  return text;
}

inline std::span<float> floats_of(const Arena& arena) {
  return {reinterpret_cast<float*>(arena.data), arena.bytes / sizeof(float)};
}

inline constexpr std::size_t kCount = 20011;

}  // namespace lockstep::wire
