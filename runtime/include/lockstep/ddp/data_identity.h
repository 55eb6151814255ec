// SPDX-License-Identifier: Apache-2.0
// The numbers that decide which samples a rank reads, equal on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// Names and values, in one order on all ranks: at most kMostDataNumbers.
using DataNumbers = std::vector<std::pair<std::string, std::uint64_t>>;
inline constexpr std::size_t kMostDataNumbers = 12;

// The function that the loaders' identity() returns. Called in every synchronised step.
using DataIdentity = std::function<DataNumbers()>;

}  // namespace lockstep
