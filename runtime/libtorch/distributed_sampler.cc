#include "lockstep/libtorch/distributed_sampler.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::libtorch {
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
    : rank_(rank),
      world_(world),
      options_(options),
      state_(std::make_shared<State>(
          State{.length = require_sane(length, rank, world), .order = order_of(length, options)})) {}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  if (state_->is_resumed && epoch == state_->epoch) return;
  state_->is_resumed = false;
  state_->next_epoch = epoch;
}

void DistributedSampler::resume(std::int64_t epoch, std::size_t samples) {
  state_->epoch = epoch;
  state_->next_epoch = epoch + 1;
  state_->order.set_epoch(epoch);
  state_->position = std::min(samples, size());
  state_->is_resumed = state_->position < size();
}

std::size_t DistributedSampler::samples_of(int rank) const {
  const auto world = static_cast<std::size_t>(world_);
  switch (options_.uneven) {
    case Uneven::drop: return state_->length / world;
    case Uneven::pad: return (state_->length + world - 1) / world;
    case Uneven::exact: return (state_->length + world - 1 - static_cast<std::size_t>(rank)) / world;
  }
  return 0;
}

std::size_t DistributedSampler::size() const { return samples_of(rank_); }

std::size_t DistributedSampler::most_batches(std::size_t batch_size) const {
  return (samples_of(0) + require_batch(batch_size) - 1) / batch_size;
}

void DistributedSampler::reset(::torch::optional<std::size_t> new_length) {
  State& state = *state_;
  if (new_length && *new_length != state.length) {
    state.length = *new_length;
    state.order = order_of(state.length, options_);
    state.is_resumed = false;
  }
  if (std::exchange(state.is_resumed, false)) return;
  state.epoch = state.next_epoch++;
  state.order.set_epoch(state.epoch);
  state.position = 0;
}

::torch::optional<DistributedSampler::Index> DistributedSampler::next(std::size_t batch_size) {
  State& state = *state_;
  state.is_resumed = false;
  const std::size_t end = std::min(state.position + require_batch(batch_size), size());
  if (state.position >= end) return {};
  Index batch;
  for (; state.position < end; ++state.position) {
    const std::size_t at = state.position * static_cast<std::size_t>(world_) + static_cast<std::size_t>(rank_);
    batch.push_back(static_cast<std::size_t>(state.order[static_cast<std::int64_t>(at % state.length)]));
  }
  return batch;
}

void DistributedSampler::save(::torch::serialize::OutputArchive& archive) const {
  const auto write = [&](const char* name, std::int64_t value) {
    archive.write(name, at::scalar_tensor(value, at::kLong), /*is_buffer=*/true);
  };
  write("epoch", state_->epoch);
  write("position", static_cast<std::int64_t>(state_->position));
  write("length", static_cast<std::int64_t>(state_->length));
  write("world", world_);
}

void DistributedSampler::load(::torch::serialize::InputArchive& archive) {
  const auto read = [&](const char* name) {
    at::Tensor value = at::empty({}, at::kLong);
    archive.read(name, value, /*is_buffer=*/true);
    return value.item<std::int64_t>();
  };
  const std::int64_t length = read("length");
  const std::int64_t world = read("world");
  if (length != static_cast<std::int64_t>(state_->length) || world != world_) {
    throw InvalidArgument(
        fmt::format("DistributedSampler: the archive is of {} samples dealt out to {} ranks, this sampler of {} to {}, "
                    "and a place in the one is none in the other; begin the epoch anew with set_epoch({})",
                    length, world, state_->length, world_, read("epoch")));
  }
  resume(read("epoch"), static_cast<std::size_t>(read("position")));
}

}  // namespace lockstep::libtorch
