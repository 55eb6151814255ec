// Which samples a rank reads: pure functions of (length, rank, world, seed, epoch, position).
//
// Ranks never talk about it: each works out its own part from plain numbers, and the parts fit together because every
// rank was given the same length, world, seed and epoch. The order of a shuffled epoch is the same on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::data {

// The numbers 0..length-1 in the random order of this (seed, epoch): a Fisher-Yates shuffle over Philox.
LOCKSTEP_API std::vector<std::int64_t> permutation(std::int64_t length, std::uint64_t seed, std::int64_t epoch);

// A run of rows.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// Rank `rank`'s rows when `rows` are split as PyTorch's chunk(world) does: pieces of ceil(rows / world), the last one
// short, ranks beyond it without any. 30 over 8 is seven times 4 and 2; 10 over 8 is five times 2, three ranks empty.
LOCKSTEP_API RowRange chunk(std::int64_t rows, int rank, int world);

// One rank's part of each epoch, in batches. Indices are into the dataset and double as global sample ids.
//
// Threads: batch() and num_batches() may be called by many at once, set_epoch() by one while nobody else is inside.
// Failure: constructors and batch() throw InvalidArgument for a number out of its range.
class LOCKSTEP_API Sampler {
 public:
  virtual ~Sampler() = default;
  // Call before an epoch's iteration; equal on all ranks. The epoch is 0 at first.
  virtual void set_epoch(std::int64_t epoch) = 0;
  // Batches that every rank gets in this epoch, for a given batch_size: equal on all ranks.
  virtual std::int64_t num_batches(std::int64_t batch_size) const = 0;
  // This rank's rows of batch `index` (0 <= index < num_batches), in order. May be empty.
  virtual std::vector<std::int64_t> batch(std::int64_t index, std::int64_t batch_size) const = 0;
};

// What both samplers below have in common: the order of an epoch's samples.
class LOCKSTEP_API EpochOrder {
 public:
  EpochOrder(std::int64_t length, bool shuffle, std::uint64_t seed);
  void set_epoch(std::int64_t epoch);
  std::int64_t size() const { return length_; }
  // The sample at `position` of the epoch.
  std::int64_t operator[](std::int64_t position) const {
    return order_.empty() ? position : order_[static_cast<std::size_t>(position)];
  }

 private:
  std::int64_t length_;
  bool shuffle_;
  std::uint64_t seed_;
  std::vector<std::int64_t> order_;  // empty: 0, 1, 2, ...
};

struct DistributedSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;  // equal on all ranks
  // False: the epoch is padded with samples from its front until every rank has ceil(length / world).
  // True: its tail is cut, so that every rank has floor(length / world), and no sample comes twice.
  bool drop_last = false;
};

// PyTorch's DistributedSampler (torch/utils/data/distributed.py): rank r reads positions r, r + world, r + 2 world, ...
// of the epoch. batch_size counts the rows of one rank; the last batch may be short, but equally on all ranks.
class LOCKSTEP_API DistributedSampler final : public Sampler {
 public:
  DistributedSampler(std::int64_t length, int rank, int world, const DistributedSamplerOptions& options = {});
  void set_epoch(std::int64_t epoch) override { order_.set_epoch(epoch); }
  std::int64_t num_batches(std::int64_t batch_size) const override;
  std::vector<std::int64_t> batch(std::int64_t index, std::int64_t batch_size) const override;
  // Samples of each rank in an epoch.
  std::int64_t num_samples() const { return num_samples_; }

 private:
  EpochOrder order_;
  int rank_;
  int world_;
  std::int64_t num_samples_;
};

struct BatchShardSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;  // equal on all ranks
  bool drop_last = false;  // leave out the last batch if it is short
};

// The epoch is cut into global batches as one process would, and each is split over the ranks along dimension 0 (see
// chunk). batch_size counts the rows of all ranks together, so that a run computes the same at every world size. Every
// sample comes exactly once per epoch; every rank gets a batch for every step, of 0 rows if need be.
class LOCKSTEP_API BatchShardSampler final : public Sampler {
 public:
  BatchShardSampler(std::int64_t length, int rank, int world, const BatchShardSamplerOptions& options = {});
  void set_epoch(std::int64_t epoch) override { order_.set_epoch(epoch); }
  std::int64_t num_batches(std::int64_t batch_size) const override;
  std::vector<std::int64_t> batch(std::int64_t index, std::int64_t batch_size) const override;

 private:
  EpochOrder order_;
  int rank_;
  int world_;
  bool drop_last_;
};

}  // namespace lockstep::data
