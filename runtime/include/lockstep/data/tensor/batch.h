// SPDX-License-Identifier: Apache-2.0
// Batches of tensors: what a loader hands to a training loop.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

// `for (const auto& [x, y, ids] : loader)`. Dimension 0 counts samples and may be 0.
struct Batch {
  Tensor x;
  Tensor y;                       // undefined for data without targets
  std::vector<std::int64_t> ids;  // global sample ids: sample i is row i of x and y

  std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }
  // A copy of samples [begin, end). InvalidArgument if it has not got them.
  LOCKSTEP_API Batch rows(std::int64_t begin, std::int64_t end) const;
  // The same samples on a device: Tensor::to of x and y.
  LOCKSTEP_API Batch to(DeviceId device) const;
};

// One sample, without the dimension of the batch.
struct Sample {
  Tensor x;
  Tensor y;
};

// A dataset in memory: sample i is row i of x and, if there are targets, of y. The rows are copied into the batch.
class LOCKSTEP_API TensorDataset {
 public:
  // InvalidArgument if x has no dimension, y another number of rows, or one is not on the CPU.
  explicit TensorDataset(Tensor x, Tensor y = {});
  std::int64_t size() const { return x_.size(0); }
  Batch batch(std::span<const std::int64_t> ids) const;

 private:
  Tensor x_;
  Tensor y_;
};

// Samples as rows of one tensor each. `like` gives shape and dtype of a sample, for batches of none.
// InvalidArgument, naming the sample id, if one differs from it.
LOCKSTEP_API Batch collate(std::span<const std::int64_t> ids, std::span<const Sample> samples, const Sample& like);

// Makes a dataset of batches out of one whose get(id) returns a Sample. All samples have the first one's shapes.
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
