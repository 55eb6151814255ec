// SPDX-License-Identifier: Apache-2.0
// Defines DataNumbers, the numbers that decide which samples a rank reads and that must be equal on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// DataNumbers holds at most kMostDataNumbers pairs of a name and a value, in an order that is equal on all ranks.
using DataNumbers = std::vector<std::pair<std::string, std::uint64_t>>;
inline constexpr std::size_t kMostDataNumbers = 12;
// The names of two numbers of a loader whose sampler has audits: the number of the audit in the last batch that the
// loader has handed out, or 0; and GlobalBatchSamplerOptions::ranks_per_host.
inline constexpr const char* kAuditNumber = "audit of the batch";
inline constexpr const char* kAuditRanksPerHost = "ranks of a host, for audits";

// DataIdentity is the type of the function that DataLoader::identity() returns. Every synchronised step calls
// the function.
using DataIdentity = std::function<DataNumbers()>;

}  // namespace lockstep
