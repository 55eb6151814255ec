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

// The weights times 2^-exponent, of which the largest lies in [0.5, 1): neither their sum nor their mean leaves the
// range of a double, and no bit of a weight is lost but of those 2^-1022 times the largest.
struct Scaled {
  std::span<const double> weights;
  int exponent = 0;
  double operator[](std::size_t i) const { return std::ldexp(weights[i], -exponent); }
  double mean() const {
    double sum = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) sum += (*this)[i];
    return sum / static_cast<double>(weights.size());
  }
};

Scaled scaled(std::span<const double> weights) {
  if (weights.size() > std::uint64_t{std::numeric_limits<std::uint32_t>::max()} + 1) {
    throw InvalidArgument(fmt::format("EpochOrder::weighted: got {} weights; give at most 2^32", weights.size()));
  }
  double largest = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0) || std::isinf(weights[i])) {
      throw InvalidArgument(fmt::format(
          "EpochOrder::weighted: the weight of sample {} is {}; give finite weights of at least 0", i, weights[i]));
    }
    largest = std::max(largest, weights[i]);
  }
  if (largest == 0) {
    throw InvalidArgument(
        fmt::format("EpochOrder::weighted: none of the {} weights is above 0, so that no sample can be drawn; give at "
                    "least one weight above 0",
                    weights.size()));
  }
  Scaled result{.weights = weights};
  static_cast<void>(std::frexp(largest, &result.exponent));
  return result;
}

}  // namespace

AliasTable::AliasTable(std::span<const double> weights) : share_(weights.size()), alias_(weights.size()) {
  const Scaled of_one = scaled(weights);
  const double mean = of_one.mean();
  std::vector<std::uint32_t> small, large;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    share_[i] = of_one[i] / mean;
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
    if (of_one[left] > 0) {
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
