#include "runtime/libtorch/distributed_sampler.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace lockstep::torch {
namespace {

std::size_t require_sane(std::size_t length, int rank, int world) {
  if (world < 1 || rank < 0 || rank >= world) {
    throw InvalidArgument(
        fmt::format("DistributedSampler: rank {} of {}; pass group->rank() and group->size()", rank, world));
  }
  return length;
}

std::size_t require_batch(std::size_t batch_size) {
  if (batch_size == 0) {
    throw InvalidArgument(
        "DistributedSampler: a batch size of 0, of which an epoch has no end; is the global batch smaller than the "
        "number of ranks?");
  }
  return batch_size;
}

data::EpochOrder order_of(std::size_t length, const SamplerOptions& options) {
  return {static_cast<std::int64_t>(length), options.shuffle, options.seed};
}

}  // namespace

DistributedSampler::DistributedSampler(std::size_t length, int rank, int world, const SamplerOptions& options)
    : length_(require_sane(length, rank, world)),
      rank_(rank),
      world_(world),
      options_(options),
      order_(order_of(length, options)) {}

void DistributedSampler::set_epoch(std::int64_t epoch) { *next_epoch_ = epoch; }

std::size_t DistributedSampler::samples_of(int rank) const {
  const auto world = static_cast<std::size_t>(world_);
  switch (options_.uneven) {
    case Uneven::drop: return length_ / world;
    case Uneven::pad: return (length_ + world - 1) / world;
    case Uneven::exact: return (length_ + world - 1 - static_cast<std::size_t>(rank)) / world;
  }
  return 0;
}

std::size_t DistributedSampler::size() const { return samples_of(rank_); }

std::size_t DistributedSampler::most_batches(std::size_t batch_size) const {
  return (samples_of(0) + require_batch(batch_size) - 1) / batch_size;
}

void DistributedSampler::reset(::torch::optional<std::size_t> new_length) {
  if (new_length && *new_length != length_) {
    length_ = *new_length;
    order_ = order_of(length_, options_);
  }
  epoch_ = (*next_epoch_)++;
  order_.set_epoch(epoch_);
  position_ = 0;
}

::torch::optional<DistributedSampler::Index> DistributedSampler::next(std::size_t batch_size) {
  const std::size_t end = std::min(position_ + require_batch(batch_size), size());
  if (position_ >= end) return {};
  Index batch;
  for (; position_ < end; ++position_) {
    const std::size_t at = position_ * static_cast<std::size_t>(world_) + static_cast<std::size_t>(rank_);
    batch.push_back(static_cast<std::size_t>(order_[static_cast<std::int64_t>(at % length_)]));
  }
  return batch;
}

void DistributedSampler::save(::torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", at::scalar_tensor(epoch_, at::kLong), /*is_buffer=*/true);
  archive.write("position", at::scalar_tensor(static_cast<std::int64_t>(position_), at::kLong), /*is_buffer=*/true);
}

void DistributedSampler::load(::torch::serialize::InputArchive& archive) {
  at::Tensor epoch = at::empty({}, at::kLong);
  at::Tensor position = at::empty({}, at::kLong);
  archive.read("epoch", epoch, /*is_buffer=*/true);
  archive.read("position", position, /*is_buffer=*/true);
  epoch_ = epoch.item<std::int64_t>();
  *next_epoch_ = epoch_ + 1;
  order_.set_epoch(epoch_);
  position_ = static_cast<std::size_t>(position.item<std::int64_t>());
}

}  // namespace lockstep::torch
