// SPDX-License-Identifier: Apache-2.0
// The order of an epoch's samples: which sample comes at which position.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::data {

// A pure function (seed, epoch, position) -> sample, the same on all ranks and at every world size. Samplers deal its
// positions out to the ranks.
//
//   EpochOrder::shuffled(length, seed)                      each sample once
//   EpochOrder::weighted(weights, draws, seed)              with replacement
//   EpochOrder::shuffled(train.size(), seed).within(train)  of a subset, whose samples are listed in `train`
//
// Threads: those of a const object may be several; set_epoch() while nobody else is inside. Copies are independent.
class LOCKSTEP_API EpochOrder {
 public:
  // Replaces positions, each in [0, size()), by the samples there. Called by several threads.
  using Lookup = std::function<void(std::span<std::int64_t> positions)>;
  using OfEpoch = std::function<Lookup(std::int64_t epoch)>;

  // 0, 1, 2, ... InvalidArgument for a length below 0.
  static EpochOrder in_order(std::int64_t length);
  // Each sample once, in the random order that Permutation says.
  static EpochOrder shuffled(std::int64_t length, std::uint64_t seed);
  // `draws` samples per epoch with replacement: sample i with probability weights[i] / sum(weights), each draw
  // independent of the others. Takes 12 bytes per weight. InvalidArgument unless the weights are finite, at least 0,
  // and one of them above, and there are at most 2^32.
  static EpochOrder weighted(std::span<const double> weights, std::int64_t draws, std::uint64_t seed);
  // An order of the program's own. `of_epoch` is pure and the same on all ranks; `digest` is of all it depends on
  // besides seed and epoch, by which ranks find that theirs differ.
  EpochOrder(std::int64_t size, std::uint64_t seed, std::uint64_t digest, OfEpoch of_epoch);

  // The same of a subset: in place of sample i comes samples[i]. InvalidArgument, when it is read, where that is not.
  EpochOrder within(std::vector<std::int64_t> samples) const;

  std::int64_t size() const { return size_; }  // samples in an epoch
  std::uint64_t seed() const { return seed_; }
  std::uint64_t digest() const { return digest_; }
  std::int64_t epoch() const { return epoch_; }
  // 0 at first. InvalidArgument below 0.
  void set_epoch(std::int64_t epoch);

  void lookup(std::span<std::int64_t> positions) const { lookup_(positions); }
  std::int64_t operator[](std::int64_t position) const {
    lookup_({&position, 1});
    return position;
  }

 private:
  std::int64_t size_;
  std::uint64_t seed_;
  std::uint64_t digest_;
  OfEpoch of_epoch_;
  std::int64_t epoch_ = 0;
  Lookup lookup_;
};

}  // namespace lockstep::data
