// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
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
        fmt::format("{}: rank {} is not a rank of world size {}; rank must be in [0, world size): give the group's "
                    "rank() and size()",
                    who, rank, world));
  }
}

EpochOrder order_of(std::int64_t length, bool shuffle, std::uint64_t seed) {
  return shuffle ? EpochOrder::shuffled(length, seed) : EpochOrder::in_order(length);
}

}  // namespace

RowRange chunk(std::int64_t rows, int rank, int world) {
  check_rank("chunk", rank, world);
  if (rows < 0)
    throw InvalidArgument(
        fmt::format("chunk: rows is {}, and must be at least 0; give the number of rows that the ranks share", rows));
  const std::int64_t piece = ceil_div(rows, world);
  const std::int64_t begin = std::min(rows, piece * rank);
  return {begin, std::min(piece, rows - begin)};
}

RowRange rows_in_micro_batches(std::int64_t rows, std::int64_t global_batch, int micro_batches, int rank, int world) {
  const MicroBatchRange run = micro_batches_of(micro_batches, rank, world);
  const std::int64_t each = micro_batch_rows(global_batch, micro_batches);
  // Whole micro-batches, as far as there are rows: no product passes 64 bits.
  const auto begin_of = [&](int micro_batch) {
    return rows / each < micro_batch ? rows : std::min(rows, micro_batch * each);
  };
  return {begin_of(run.begin), begin_of(run.end) - begin_of(run.begin)};
}

Sampler::Sampler(const char* name, EpochOrder order, int rank, int world, std::int64_t batch_rows, const char* option,
                 const char* whose)
    : name_(name), order_(std::move(order)), rank_(rank), world_(world), batch_rows_(batch_rows) {
  check_rank(name, rank, world);
  if (batch_rows < 1) {
    throw InvalidArgument(fmt::format("{}: {} is {}; give the number of rows in a batch of {}, at least 1", name,
                                      option, batch_rows, whose));
  }
}

void Sampler::set_epoch(std::int64_t epoch) {
  order_.set_epoch(epoch);
  start_ = 0;
}

void Sampler::require_place(const SamplerState& state) const {
  if (state.length != order_.size() || state.seed != order_.seed()) {
    throw InvalidArgument(fmt::format(
        "{}: can't resume: the saved place belongs to {} samples with seed {}, but this sampler has {} samples with "
        "seed {}; make the sampler with the saved number and seed, or begin an epoch anew with set_epoch({})",
        name_, state.length, state.seed, order_.size(), order_.seed(), state.epoch));
  }
  if (state.order != order_.digest()) {
    throw InvalidArgument(fmt::format(
        "{}: can't resume: the saved place belongs to another order than this sampler's (shuffled or not, other "
        "weights, another subset); make the sampler with the saved order, or begin an epoch anew with set_epoch({})",
        name_, state.epoch));
  }
  if (state.consumed < 0 || state.consumed > state.length || state.epoch < 0) {
    throw InvalidArgument(
        fmt::format("{}: the state to resume says that {} of the {} samples of epoch {} are consumed; give resume() a "
                    "state that state() returned, unchanged",
                    name_, state.consumed, state.length, state.epoch));
  }
}

void Sampler::resume(const SamplerState& state) {
  require_place(state);
  order_.set_epoch(state.epoch);
  start_ = state.consumed;
}

SamplerState Sampler::state_after(std::int64_t batches) const {
  const std::int64_t all = num_batches();
  if (batches < 0 || batches > all) {
    throw InvalidArgument(
        fmt::format("{}: state_after({}) was called, but the pass has {} batches; give a number from 0 to {}", name_,
                    batches, all, all));
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
    state.consumed += batches * global_batch();
  }
  return state;
}

std::vector<std::pair<std::string, std::uint64_t>> Sampler::identity() const {
  const auto number = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  return {{"length", number(order_.size())},
          {"seed", order_.seed()},
          {"epoch", number(order_.epoch())},
          {"batch size", number(batch_rows_)},
          {"samples consumed before the pass", number(start_)},
          {"batches in the pass", number(num_batches())},
          {"digest of the order", order_.digest()},
          {"sampler and world size", hash64(std::string_view(name_), number(world_))},
          {"what becomes of a remainder", remainder()}};
}

std::int64_t Sampler::num_batches() const { return num_batches_after(start_); }

std::int64_t Sampler::num_batches_after(std::int64_t consumed) const {
  if (consumed < 0 || consumed > order_.size()) {
    throw InvalidArgument(
        fmt::format("{}: num_batches_after({}) was called, but the order has {} samples; give a number from 0 to {}",
                    name_, consumed, order_.size(), order_.size()));
  }
  return batches_in(order_.size() - consumed);
}

std::vector<std::int64_t> Sampler::batch(std::int64_t index) const {
  const std::int64_t batches = num_batches();
  if (index < 0 || index >= batches) {
    throw InvalidArgument(fmt::format(
        "{}: batch({}) was called, but the pass has {} batches; give an index from 0 and below num_batches()", name_,
        index, batches));
  }
  const std::int64_t begin = start_ + (index > 0 ? index * global_batch() : 0);
  std::vector<std::int64_t> ids;
  const auto add = [&](const Rows& rows) {
    auto position = static_cast<std::uint64_t>(begin + rows.first);
    for (std::int64_t i = 0; i < rows.count; ++i) {
      ids.push_back(static_cast<std::int64_t>(position % static_cast<std::uint64_t>(order_.size())));
      position += static_cast<std::uint64_t>(rows.stride);
    }
  };
  const Rows own = next_rows(order_.size() - begin);
  const std::int64_t audit = audit_at(begin);
  const Rows audited = audit > 0 ? audited_rows(audit) : Rows{};
  ids.reserve(static_cast<std::size_t>(own.count + audited.count));
  add(own);
  add(audited);
  order_.lookup(ids);
  return ids;
}

DistributedSampler::DistributedSampler(std::int64_t length, int rank, int world,
                                       const DistributedSamplerOptions& options)
    : DistributedSampler(order_of(length, options.shuffle, options.seed), rank, world, options) {}

DistributedSampler::DistributedSampler(EpochOrder order, int rank, int world, const DistributedSamplerOptions& options)
    : Sampler("DistributedSampler", std::move(order), rank, world, options.rows_per_rank, "rows_per_rank", "one rank"),
      uneven_(options.uneven) {}

std::int64_t DistributedSampler::count_of(int rank, std::int64_t left) const {
  switch (uneven_) {
    case Uneven::pad: return ceil_div(left, world());
    case Uneven::drop: return left / world();
    case Uneven::exact: return left / world() + (rank < left % world());
  }
  return 0;
}

// At most what there is to count.
std::int64_t DistributedSampler::global_batch() const {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return batch_rows() > kMost / world() ? kMost : batch_rows() * world();
}

std::int64_t DistributedSampler::batches_in(std::int64_t left) const {
  return ceil_div(count_of(0, left), batch_rows());
}

Sampler::Rows DistributedSampler::next_rows(std::int64_t left) const {
  return {.first = rank(), .stride = world(), .count = std::min(count_of(rank(), left), batch_rows())};
}

GlobalBatchSampler::GlobalBatchSampler(std::int64_t length, int rank, int world,
                                       const GlobalBatchSamplerOptions& options)
    : GlobalBatchSampler(order_of(length, options.shuffle, options.seed), rank, world, options) {}

GlobalBatchSampler::GlobalBatchSampler(EpochOrder order, int rank, int world, const GlobalBatchSamplerOptions& options)
    : Sampler("GlobalBatchSampler", std::move(order), rank, world, options.global_batch, "global_batch",
              "all ranks together"),
      drop_last_(options.drop_last),
      micro_batches_(options.micro_batches),
      audit_every_(world > 1 ? options.audit_every : 0),
      ranks_per_host_(options.ranks_per_host) {
  if (micro_batches_ != 0) micro_batches_of(micro_batches_, rank, world);  // throws if it can't be
  if (options.audit_every == 0) return;
  if (options.audit_every < 2 || micro_batches_ == 0) {
    throw InvalidArgument(
        fmt::format("GlobalBatchSampler: audit_every is {} with {} micro_batches; give 0 for no audits, else at least "
                    "2, and set micro_batches",
                    options.audit_every, micro_batches_));
  }
  if (rows_in_micro_batches(batch_rows(), batch_rows(), micro_batches_, world - 1, world).count == 0) {
    throw InvalidArgument(fmt::format(
        "GlobalBatchSampler: audit_every is {}, but of {} rows in {} micro-batches rank {} of {} has none to "
        "compare; take a larger global_batch, or leave audit_every out",
        options.audit_every, batch_rows(), micro_batches_, world - 1, world));
  }
}

std::int64_t GlobalBatchSampler::audit_at(std::int64_t begin) const {
  if (audit_every_ == 0 || order().size() - begin < batch_rows()) return 0;
  const std::int64_t batch = order().epoch() * batches_in(order().size()) + begin / batch_rows();
  return batch % audit_every_ == 0 ? batch / audit_every_ + 1 : 0;
}

// The last micro-batches of a full batch are short or empty if the micro-batches can't divide the rows evenly.
Sampler::Rows GlobalBatchSampler::audited_rows(std::int64_t audit) const {
  const std::int64_t each = micro_batch_rows(batch_rows(), micro_batches_);
  const std::int64_t begin =
      each * audited_micro_batch(batch_rows(), micro_batches_, rank(), world(), ranks_per_host_, audit);
  return {.first = begin, .stride = 1, .count = std::min(each, batch_rows() - begin)};
}

std::int64_t GlobalBatchSampler::batches_in(std::int64_t left) const {
  return drop_last_ ? left / batch_rows() : ceil_div(left, batch_rows());
}

Sampler::Rows GlobalBatchSampler::next_rows(std::int64_t left) const {
  const std::int64_t rows = std::min(batch_rows(), left);
  const RowRange mine = micro_batches_ == 0
                            ? chunk(rows, rank(), world())
                            : rows_in_micro_batches(rows, batch_rows(), micro_batches_, rank(), world());
  return {.first = mine.begin, .stride = 1, .count = mine.count};
}

EpochOrder::EpochOrder(std::int64_t size, std::uint64_t seed, std::uint64_t digest, OfEpoch of_epoch)
    : size_(size), seed_(seed), digest_(digest), of_epoch_(std::move(of_epoch)) {
  if (size < 0)
    throw InvalidArgument(
        fmt::format("sampler: length is {}; it must be at least 0: give the number of samples of the dataset", size));
  if (size == 0)
    log_warn(
        "sampler: length 0: the dataset has no samples, so every epoch ends at once; see whether the dataset found its "
        "files");
  lookup_ = of_epoch_(0);
}

void EpochOrder::set_epoch(std::int64_t epoch) {
  if (epoch < 0)
    throw InvalidArgument(fmt::format("sampler: epoch is {}; it must be at least 0: count epochs from 0", epoch));
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
              fmt::format("sampler: the order drew position {} of a subset of {} samples; make the order for as many "
                          "samples as the subset has",
                          position, list->size()));
        }
        position = (*list)[static_cast<std::size_t>(position)];
      }
    };
  });
  order.set_epoch(epoch_);
  return order;
}

MicroBatchRange micro_batches_of(int micro_batches, int rank, int world) {
  if (world < 1 || rank < 0 || rank >= world) {
    throw InvalidArgument(
        fmt::format("fixed micro-batches: rank {} is not a rank of world size {}; rank must be in [0, world size): "
                    "give the group's rank() and size()",
                    rank, world));
  }
  if (micro_batches < world) {
    throw InvalidArgument(
        fmt::format("fixed micro-batches: {} micro-batches for {} ranks would leave a rank without one; take at least "
                    "{} micro-batches, or fewer ranks",
                    micro_batches, world, world));
  }
  const auto cut = [&](std::int64_t before) { return static_cast<int>(before * micro_batches / world); };
  return {cut(rank), cut(rank + std::int64_t{1})};
}

int audited_micro_batch(std::int64_t global_batch, int micro_batches, int rank, int world, int ranks_per_host,
                        std::int64_t audit) {
  // The ranks form a ring in which neighbours are on different hosts.
  const int each = ranks_per_host > 0 && world % ranks_per_host == 0 ? ranks_per_host : 1;
  const int hosts = world / each;
  std::vector<int> distances;
  for (int distance = 1; distance < world; ++distance) {
    const bool is_on_host = hosts > 1 && distance % hosts == 0;
    const bool is_mutual = 2 * distance == world && world > 2;
    if (!is_on_host && !is_mutual) distances.push_back(distance);
  }
  const std::int64_t turn = audit - 1, ring = std::ssize(distances);
  const int place = (rank % each * hosts + rank / each + distances[static_cast<std::size_t>(turn % ring)]) % world;
  const MicroBatchRange run = micro_batches_of(micro_batches, place % hosts * each + place / hosts, world);
  const std::int64_t filled = ceil_div(global_batch, micro_batch_rows(global_batch, micro_batches));
  return run.begin + static_cast<int>(turn / ring % (std::min<std::int64_t>(run.end, filled) - run.begin));
}

std::int64_t micro_batch_rows(std::int64_t global_batch, int micro_batches) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 40;  // times any number of micro-batches it fits in 64 bits
  if (global_batch < 1 || global_batch > kMostRows || micro_batches < 1) {
    throw InvalidArgument(
        fmt::format("fixed micro-batches: got {} micro-batches for a batch of {} rows; give as batch the rows of a "
                    "full step of all ranks together, from 1 to {}, and at least 1 micro-batch",
                    micro_batches, global_batch, kMostRows));
  }
  return global_batch / micro_batches + (global_batch % micro_batches != 0 ? 1 : 0);
}

}  // namespace lockstep::data
