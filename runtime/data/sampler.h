// Which samples a rank reads: pure functions of (length, rank, world, seed, epoch).
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

// One rank's part of each epoch, in batches. Indices are into the dataset and double as global sample ids.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // Call before an epoch's iteration; equal on all ranks.
  virtual void set_epoch(std::int64_t epoch) = 0;
  // Batches that every rank gets in this epoch, for a given batch_size: equal on all ranks.
  virtual std::int64_t num_batches(std::int64_t batch_size) const = 0;
  // This rank's rows of batch `index`, in order. May be empty.
  virtual std::vector<std::int64_t> batch(std::int64_t index, std::int64_t batch_size) const = 0;
};

}  // namespace lockstep::data
