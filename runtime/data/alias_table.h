// SPDX-License-Identifier: Apache-2.0
// Draws from a list of weights in constant time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

// Vose's alias method ("A linear algorithm for generating random numbers with a given distribution", 1991): each column
// holds its own number with a probability, and another number with the rest.
class AliasTable {
 public:
  // InvalidArgument unless the weights are finite, at least 0, one above, and at most 2^32.
  explicit AliasTable(std::span<const double> weights);
  // A pure function of the key: index i with probability weights[i] / sum, whatever the weights' scale.
  std::int64_t draw(std::uint64_t seed, std::uint64_t epoch, std::uint64_t position) const;

 private:
  std::vector<double> share_;         // of a column's own number
  std::vector<std::uint32_t> alias_;  // its other number
};

}  // namespace lockstep::data
