// SPDX-License-Identifier: Apache-2.0
// Defines batches of tensors, which a loader hands to a training loop.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

// Batch is a batch of samples: `for (const auto& [x, y, ids] : loader)`. Dimension 0 of x and y counts samples and may
// be 0.
struct Batch {
  Tensor x;
  Tensor y;                       // undefined for data without targets
  std::vector<std::int64_t> ids;  // global sample ids: sample i is row i of x and y

  std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }
  // Returns a copy of samples [begin, end). Throws InvalidArgument if the batch does not have these samples.
  LOCKSTEP_API Batch rows(std::int64_t begin, std::int64_t end) const;
  // Returns this batch with x and y moved to a device by Tensor::to.
  LOCKSTEP_API Batch to(DeviceId device) const;
};

// Sample is one sample, without the dimension of the batch.
struct Sample {
  Tensor x;
  Tensor y;
};

// TensorDataset is a dataset in memory: sample i is row i of x and, if y is defined, row i of y. batch() copies
// the rows.
class LOCKSTEP_API TensorDataset {
 public:
  // Throws InvalidArgument if x has no dimension, if y has another number of rows than x, or if x or y is not on
  // the CPU.
  explicit TensorDataset(Tensor x, Tensor y = {});
  std::int64_t size() const { return x_.size(0); }
  Batch batch(std::span<const std::int64_t> ids) const;

 private:
  Tensor x_;
  Tensor y_;
};

// Returns a batch whose row i is samples[i]. `like` gives the shapes and dtypes of a sample, also for a batch without
// samples. Throws InvalidArgument, which names the sample id, if a sample's shape or dtype differs from `like`.
LOCKSTEP_API Batch collate(std::span<const std::int64_t> ids, std::span<const Sample> samples, const Sample& like);

// Collated makes a Dataset of Batches out of a SampleDataset whose get(id) returns a Sample. All samples have the
// shapes of sample 0.
template <SampleDataset D>
class Collated {
 public:
  explicit Collated(D dataset) : dataset_(std::move(dataset)) {
    if (dataset_.size() > 0) like_ = dataset_.get(0);
  }
  std::int64_t size() const { return dataset_.size(); }
  Batch batch(std::span<const std::int64_t> ids) const {
    std::vector<Sample> samples;
    samples.reserve(ids.size());
    for (const std::int64_t id : ids) samples.push_back(dataset_.get(id));
    return collate(ids, samples, like_);
  }

 private:
  D dataset_;
  Sample like_;
};

}  // namespace lockstep::data
