// SPDX-License-Identifier: Apache-2.0
#include "runtime/data/alias_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::data {
namespace {

// Keeps these draws apart from those of a Permutation of the same seed.
constexpr std::uint64_t kStream = 0x7765696768746564;  // "weighted"

double sum_of(std::span<const double> weights) {
  if (weights.size() > std::uint64_t{std::numeric_limits<std::uint32_t>::max()} + 1) {
    throw InvalidArgument(fmt::format("weighted order: {} weights; there may be 2^32", weights.size()));
  }
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0) || std::isinf(weights[i])) {
      throw InvalidArgument(fmt::format(
          "weighted order: the weight of sample {} is {}; weights are finite and at least 0", i, weights[i]));
    }
    sum += weights[i];
  }
  if (!(sum > 0) || std::isinf(sum)) {
    throw InvalidArgument(fmt::format(
        "weighted order: the {} weights sum to {}; one must be above 0, and their sum finite", weights.size(), sum));
  }
  return sum;
}

}  // namespace

AliasTable::AliasTable(std::span<const double> weights) : share_(weights.size()), alias_(weights.size()) {
  const double mean = sum_of(weights) / static_cast<double>(weights.size());
  std::vector<std::uint32_t> small, large;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    share_[i] = weights[i] / mean;
    alias_[i] = static_cast<std::uint32_t>(i);
    (share_[i] < 1 ? small : large).push_back(static_cast<std::uint32_t>(i));
  }
  while (!small.empty() && !large.empty()) {
    const std::uint32_t filled = small.back();
    const std::uint32_t giver = large.back();
    small.pop_back();
    alias_[filled] = giver;
    share_[giver] -= 1 - share_[filled];
    if (share_[giver] >= 1) continue;
    large.pop_back();
    small.push_back(giver);
  }
  // Rounding may leave columns on one side. They are full, but for what must never be drawn.
  const auto heaviest = static_cast<std::uint32_t>(std::max_element(weights.begin(), weights.end()) - weights.begin());
  for (const std::uint32_t left : small) {
    if (weights[left] > 0) {
      share_[left] = 1;
    } else {
      alias_[left] = heaviest;
    }
  }
}

std::int64_t AliasTable::draw(std::uint64_t seed, std::uint64_t epoch, std::uint64_t position) const {
  const std::uint64_t key = seed ^ kStream;
  const auto random = philox({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32),
                              static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)},
                             {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
  const std::uint64_t column = scale_bits(std::uint64_t{random[1]} << 32 | random[0], share_.size());
  const double where = static_cast<double>((std::uint64_t{random[3]} << 32 | random[2]) >> 11) * 0x1.0p-53;
  return where < share_[column] ? static_cast<std::int64_t>(column) : alias_[column];
}

}  // namespace lockstep::data
