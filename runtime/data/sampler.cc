#include "lockstep/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::data {
namespace {

// Overflow-free, unlike (a + b - 1) / b.
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

void check_rank(const char* who, int rank, int world) {
  if (world < 1 || rank < 0 || rank >= world) {
    throw InvalidArgument(
        fmt::format("{}: rank {} of world size {}; rank must be in [0, world size)", who, rank, world));
  }
}

void check_batch_size(const char* who, std::int64_t batch_size) {
  if (batch_size < 1) throw InvalidArgument(fmt::format("{}: batch_size {}; it must be at least 1", who, batch_size));
}

void check_batch(const char* who, std::int64_t index, std::int64_t batches) {
  if (index < 0 || index >= batches) {
    throw InvalidArgument(fmt::format("{}: batch {} of an epoch that has {}", who, index, batches));
  }
}

}  // namespace

std::vector<std::int64_t> permutation(std::int64_t length, std::uint64_t seed, std::int64_t epoch) {
  if (length < 0) throw InvalidArgument(fmt::format("permutation: length {}; it must be at least 0", length));
  std::vector<std::int64_t> order(static_cast<std::size_t>(length));
  std::iota(order.begin(), order.end(), 0);
  // The epoch is a stream of its own: seed 0's epoch 1 has nothing to do with seed 1's epoch 0.
  Generator generator(seed, static_cast<std::uint64_t>(epoch));
  for (std::size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[generator.below(left)]);
  return order;
}

RowRange chunk(std::int64_t rows, int rank, int world) {
  check_rank("chunk", rank, world);
  if (rows < 0) throw InvalidArgument(fmt::format("chunk: {} rows; there must be at least 0", rows));
  const std::int64_t piece = ceil_div(rows, world);
  const std::int64_t begin = std::min(rows, piece * rank);
  return {begin, std::min(piece, rows - begin)};
}

EpochOrder::EpochOrder(std::int64_t length, bool shuffle, std::uint64_t seed)
    : length_(length), shuffle_(shuffle), seed_(seed) {
  if (length < 0) throw InvalidArgument(fmt::format("sampler: length {}; it must be at least 0", length));
  set_epoch(0);
}

void EpochOrder::set_epoch(std::int64_t epoch) {
  if (epoch < 0) throw InvalidArgument(fmt::format("sampler: epoch {}; it must be at least 0", epoch));
  if (shuffle_) order_ = permutation(length_, seed_, epoch);
}

DistributedSampler::DistributedSampler(std::int64_t length, int rank, int world,
                                       const DistributedSamplerOptions& options)
    : order_(length, options.shuffle, options.seed), rank_(rank), world_(world) {
  check_rank("DistributedSampler", rank, world);
  num_samples_ = options.drop_last ? length / world : ceil_div(length, world);
}

std::int64_t DistributedSampler::num_batches(std::int64_t batch_size) const {
  check_batch_size("DistributedSampler", batch_size);
  return ceil_div(num_samples_, batch_size);
}

std::vector<std::int64_t> DistributedSampler::batch(std::int64_t index, std::int64_t batch_size) const {
  check_batch("DistributedSampler", index, num_batches(batch_size));
  const std::int64_t first = index * batch_size;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min(batch_size, num_samples_ - first)));
  // Positions past the end are the padding: the epoch again, from its front.
  std::int64_t position = first * world_ + rank_;
  for (std::int64_t& id : ids) {
    id = order_[position % order_.size()];
    position += world_;
  }
  return ids;
}

BatchShardSampler::BatchShardSampler(std::int64_t length, int rank, int world, const BatchShardSamplerOptions& options)
    : order_(length, options.shuffle, options.seed), rank_(rank), world_(world), drop_last_(options.drop_last) {
  check_rank("BatchShardSampler", rank, world);
}

std::int64_t BatchShardSampler::num_batches(std::int64_t batch_size) const {
  check_batch_size("BatchShardSampler", batch_size);
  return drop_last_ ? order_.size() / batch_size : ceil_div(order_.size(), batch_size);
}

std::vector<std::int64_t> BatchShardSampler::batch(std::int64_t index, std::int64_t batch_size) const {
  check_batch("BatchShardSampler", index, num_batches(batch_size));
  const std::int64_t first = index * batch_size;
  const RowRange mine = chunk(std::min(batch_size, order_.size() - first), rank_, world_);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(mine.count));
  std::int64_t position = first + mine.begin;
  for (std::int64_t& id : ids) id = order_[position++];
  return ids;
}

}  // namespace lockstep::data
