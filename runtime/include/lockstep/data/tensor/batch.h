// SPDX-License-Identifier: Apache-2.0
// Defines Batch, the batch of tensors that a DataLoader hands to a training loop.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

// Batch holds the samples of a batch as tensors; a loop can unpack a Batch with `for (const auto& [x, y, ids] :
// loader)`. The size of dimension 0 of x and y is the number of samples, which may be 0.
struct Batch {
  Tensor x;
  Tensor y;                       // undefined for data without targets
  std::vector<std::int64_t> ids;  // global sample ids: sample i is row i of x and y

  std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }
  // Returns a copy of samples [begin, end). Throws InvalidArgument if the batch does not have the samples [begin, end).
  LOCKSTEP_API Batch rows(std::int64_t begin, std::int64_t end) const;
  // Returns a batch whose x and y are on `device`; Tensor::to moves the tensors.
  LOCKSTEP_API Batch to(DeviceId device) const;
};

// Sample holds one sample, whose tensors have no batch dimension.
struct Sample {
  Tensor x;
  Tensor y;
};

// TensorDataset is a dataset in memory: sample i is row i of x and, if y is defined, row i of y. batch() copies the
// rows of its samples.
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

// Returns a batch whose row i is samples[i]. `like` is a sample with the shapes and dtypes of all samples, so that a
// batch without samples also has the right shapes and dtypes. Throws InvalidArgument if a sample's shapes or dtypes
// differ from the shapes or dtypes of `like`; the message names the sample id.
LOCKSTEP_API Batch collate(std::span<const std::int64_t> ids, std::span<const Sample> samples, const Sample& like);

// Collated converts a SampleDataset whose get(id) returns a Sample into a Dataset whose batch(ids) returns a Batch. All
// samples of the SampleDataset must have the shapes and dtypes of sample 0.
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
