// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/permutation.h"
#include "runtime/base/hash.h"
#include "runtime/base/logging.h"
#include "runtime/data/alias_table.h"

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

EpochOrder order_of(std::int64_t length, bool shuffle, std::uint64_t seed) {
  return shuffle ? EpochOrder::shuffled(length, seed) : EpochOrder::in_order(length);
}

}  // namespace

RowRange chunk(std::int64_t rows, int rank, int world) {
  check_rank("chunk", rank, world);
  if (rows < 0) throw InvalidArgument(fmt::format("chunk: {} rows; there must be at least 0", rows));
  const std::int64_t piece = ceil_div(rows, world);
  const std::int64_t begin = std::min(rows, piece * rank);
  return {begin, std::min(piece, rows - begin)};
}

RowRange rows_in_shards(std::int64_t rows, std::int64_t batch_size, int shards, int rank, int world) {
  const ShardRun run = shards_of(shards, rank, world);
  const std::int64_t each = shard_rows(batch_size, shards);
  // Whole shards, as far as there are rows: no product passes 64 bits.
  const auto begin_of = [&](int shard) { return rows / each < shard ? rows : std::min(rows, shard * each); };
  return {begin_of(run.begin), begin_of(run.end) - begin_of(run.begin)};
}

Sampler::Sampler(const char* name, EpochOrder order, int rank, int world)
    : name_(name), order_(std::move(order)), rank_(rank), world_(world) {
  check_rank(name, rank, world);
}

void Sampler::check_batch_size(std::int64_t batch_size) const {
  if (batch_size < 1) {
    throw InvalidArgument(
        fmt::format("{}: batch_size {}; it must be at least 1. Is a global batch smaller than the number of ranks?",
                    name_, batch_size));
  }
}

void Sampler::set_epoch(std::int64_t epoch) {
  order_.set_epoch(epoch);
  start_ = 0;
}

void Sampler::require_place(const SamplerState& state) const {
  if (state.length != order_.size() || state.seed != order_.seed()) {
    throw InvalidArgument(
        fmt::format("{}: the state is of {} samples with seed {}, this sampler of {} with seed {}, and a place in the "
                    "one is none in the other; give the sampler the same, or begin an epoch anew with set_epoch({})",
                    name_, state.length, state.seed, order_.size(), order_.seed(), state.epoch));
  }
  if (state.order != order_.digest()) {
    throw InvalidArgument(
        fmt::format("{}: the state is of another order than this sampler's (shuffled or not, other weights, another "
                    "subset); give the sampler the same, or begin an epoch anew with set_epoch({})",
                    name_, state.epoch));
  }
  if (state.consumed < 0 || state.consumed > state.length || state.epoch < 0) {
    throw InvalidArgument(
        fmt::format("{}: the state to resume says that {} of the {} samples of epoch {} are consumed; give resume() "
                    "one that state() returned, unchanged",
                    name_, state.consumed, state.length, state.epoch));
  }
}

void Sampler::resume(const SamplerState& state) {
  require_place(state);
  order_.set_epoch(state.epoch);
  start_ = state.consumed;
}

SamplerState Sampler::state_after(std::int64_t batches, std::int64_t batch_size) const {
  const std::int64_t all = num_batches(batch_size);
  if (batches < 0 || batches > all) {
    throw InvalidArgument(
        fmt::format("{}: state_after({}, {}) of a pass that has {} batches; give a number of them from 0 to {}", name_,
                    batches, batch_size, all, all));
  }
  SamplerState state{.length = order_.size(),
                     .seed = order_.seed(),
                     .order = order_.digest(),
                     .epoch = order_.epoch(),
                     .consumed = start_};
  // After the last batch the epoch is over, and what it leaves out is left out for good.
  if (batches == all) {
    state.consumed = state.length;
  } else {
    state.consumed += batches * rows_of_all(batch_size);
  }
  return state;
}

std::vector<std::pair<std::string, std::uint64_t>> Sampler::identity(std::int64_t batch_size) const {
  const auto number = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  return {{"length", number(order_.size())},
          {"seed", order_.seed()},
          {"epoch", number(order_.epoch())},
          {"batch size", number(batch_size)},
          {"samples consumed before the pass", number(start_)},
          {"batches in the pass", number(num_batches(batch_size))},
          {"digest of the order", order_.digest()},
          {"sampler and world size", hash64(std::string_view(name_), number(world_))},
          {"what becomes of a remainder", remainder()}};
}

std::int64_t Sampler::num_batches(std::int64_t batch_size) const { return num_batches_behind(start_, batch_size); }

std::int64_t Sampler::num_batches_behind(std::int64_t consumed, std::int64_t batch_size) const {
  check_batch_size(batch_size);
  if (consumed < 0 || consumed > order_.size()) {
    throw InvalidArgument(fmt::format("{}: num_batches_behind({}, {}) of {} samples; give from 0 to {} of them", name_,
                                      consumed, batch_size, order_.size(), order_.size()));
  }
  return batches_in(order_.size() - consumed, batch_size);
}

std::vector<std::int64_t> Sampler::batch(std::int64_t index, std::int64_t batch_size) const {
  const std::int64_t batches = num_batches(batch_size);
  if (index < 0 || index >= batches) {
    throw InvalidArgument(
        fmt::format("{}: batch({}, {}) of a pass that has {} batches; give an index from 0 and below num_batches({})",
                    name_, index, batch_size, batches, batch_size));
  }
  const std::int64_t begin = start_ + index * (index > 0 ? rows_of_all(batch_size) : 0);
  const Rows rows = next_rows(order_.size() - begin, batch_size);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(rows.count));
  auto position = static_cast<std::uint64_t>(begin + rows.first);
  for (std::int64_t& id : ids) {
    id = static_cast<std::int64_t>(position % static_cast<std::uint64_t>(order_.size()));
    position += static_cast<std::uint64_t>(rows.stride);
  }
  order_.lookup(ids);
  return ids;
}

DistributedSampler::DistributedSampler(std::int64_t length, int rank, int world,
                                       const DistributedSamplerOptions& options)
    : DistributedSampler(order_of(length, options.shuffle, options.seed), rank, world, options.uneven) {}

DistributedSampler::DistributedSampler(EpochOrder order, int rank, int world, Uneven uneven)
    : Sampler("DistributedSampler", std::move(order), rank, world), uneven_(uneven) {}

std::int64_t DistributedSampler::share_of(int rank, std::int64_t left) const {
  switch (uneven_) {
    case Uneven::pad: return ceil_div(left, world());
    case Uneven::drop: return left / world();
    case Uneven::exact: return left / world() + (rank < left % world());
  }
  return 0;
}

// At most what there is to count.
std::int64_t DistributedSampler::rows_of_all(std::int64_t batch_size) const {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return batch_size > kMost / world() ? kMost : batch_size * world();
}

std::int64_t DistributedSampler::batches_in(std::int64_t left, std::int64_t batch_size) const {
  return ceil_div(share_of(0, left), batch_size);
}

Sampler::Rows DistributedSampler::next_rows(std::int64_t left, std::int64_t batch_size) const {
  return {.first = rank(), .stride = world(), .count = std::min(share_of(rank(), left), batch_size)};
}

BatchShardSampler::BatchShardSampler(std::int64_t length, int rank, int world, const BatchShardSamplerOptions& options)
    : BatchShardSampler(order_of(length, options.shuffle, options.seed), rank, world, options.drop_last,
                        options.virtual_shards) {}

BatchShardSampler::BatchShardSampler(EpochOrder order, int rank, int world, bool drop_last, int virtual_shards)
    : Sampler("BatchShardSampler", std::move(order), rank, world),
      drop_last_(drop_last),
      virtual_shards_(virtual_shards) {
  if (virtual_shards_ != 0) shards_of(virtual_shards_, rank, world);  // throws if it can't be
}

std::int64_t BatchShardSampler::batches_in(std::int64_t left, std::int64_t batch_size) const {
  return drop_last_ ? left / batch_size : ceil_div(left, batch_size);
}

Sampler::Rows BatchShardSampler::next_rows(std::int64_t left, std::int64_t batch_size) const {
  const RowRange mine = virtual_shards_ == 0
                            ? chunk(std::min(batch_size, left), rank(), world())
                            : rows_in_shards(std::min(batch_size, left), batch_size, virtual_shards_, rank(), world());
  return {.first = mine.begin, .stride = 1, .count = mine.count};
}

EpochOrder::EpochOrder(std::int64_t size, std::uint64_t seed, std::uint64_t digest, OfEpoch of_epoch)
    : size_(size), seed_(seed), digest_(digest), of_epoch_(std::move(of_epoch)) {
  if (size < 0) throw InvalidArgument(fmt::format("sampler: length {}; it must be at least 0", size));
  if (size == 0) log_warn("sampler: length 0: the dataset has no samples, and every epoch is over at once");
  lookup_ = of_epoch_(0);
}

void EpochOrder::set_epoch(std::int64_t epoch) {
  if (epoch < 0) throw InvalidArgument(fmt::format("sampler: epoch {}; it must be at least 0", epoch));
  if (epoch == epoch_) return;
  lookup_ = of_epoch_(epoch);
  epoch_ = epoch;
}

EpochOrder EpochOrder::in_order(std::int64_t length) {
  return {length, 0, hash64("in order"), [](std::int64_t) { return [](std::span<std::int64_t>) {}; }};
}

EpochOrder EpochOrder::shuffled(std::int64_t length, std::uint64_t seed) {
  return {length, seed, hash64("shuffled"), [length, seed](std::int64_t epoch) {
            return
                [order = Permutation(length, seed, epoch)](std::span<std::int64_t> positions) { order.map(positions); };
          }};
}

EpochOrder EpochOrder::weighted(std::span<const double> weights, std::int64_t draws, std::uint64_t seed) {
  const auto table = std::make_shared<const AliasTable>(weights);
  const std::uint64_t digest = hash64(weights.data(), weights.size_bytes(), hash64("weighted"));
  return {draws, seed, digest, [table, seed](std::int64_t epoch) {
            return [table, seed, epoch](std::span<std::int64_t> positions) {
              for (std::int64_t& position : positions) {
                position = table->draw(seed, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(position));
              }
            };
          }};
}

EpochOrder EpochOrder::within(std::vector<std::int64_t> samples) const {
  const std::uint64_t digest = hash64(samples.data(), samples.size() * sizeof(samples[0]), digest_);
  const auto list = std::make_shared<const std::vector<std::int64_t>>(std::move(samples));
  EpochOrder order(size_, seed_, digest, [list, of_epoch = of_epoch_](std::int64_t epoch) {
    return [list, inner = of_epoch(epoch)](std::span<std::int64_t> positions) {
      inner(positions);
      for (std::int64_t& position : positions) {
        if (static_cast<std::uint64_t>(position) >= list->size()) {
          throw InvalidArgument(
              fmt::format("sampler: sample {} of a subset of {}; an order within a subset is one of as "
                          "many samples as the subset has",
                          position, list->size()));
        }
        position = (*list)[static_cast<std::size_t>(position)];
      }
    };
  });
  order.set_epoch(epoch_);
  return order;
}

ShardRun shards_of(int shards, int rank, int world) {
  if (world < 1 || rank < 0 || rank >= world) {
    throw InvalidArgument(
        fmt::format("virtual shards: rank {} of world size {}; rank must be in [0, world size)", rank, world));
  }
  if (shards < world) {
    throw InvalidArgument(
        fmt::format("virtual shards: {} of them for {} ranks, so that one would have none; take at least {}, or fewer "
                    "ranks",
                    shards, world, world));
  }
  const auto cut = [&](std::int64_t before) { return static_cast<int>(before * shards / world); };
  return {cut(rank), cut(rank + std::int64_t{1})};
}

std::int64_t shard_rows(std::int64_t batch_size, int shards) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 40;  // times any number of shards it fits in 64 bits
  if (batch_size < 1 || batch_size > kMostRows || shards < 1) {
    throw InvalidArgument(
        fmt::format("virtual shards: {} of them for a batch of {} rows; give the rows of a full step of all ranks "
                    "together, from 1 to {}, and at least 1 shard",
                    shards, batch_size, kMostRows));
  }
  return batch_size / shards + (batch_size % shards != 0 ? 1 : 0);
}

}  // namespace lockstep::data
