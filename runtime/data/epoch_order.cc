// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sampler.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/permutation.h"
#include "runtime/base/hash.h"
#include "runtime/base/logging.h"
#include "runtime/data/alias_table.h"

namespace lockstep::data {

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

}  // namespace lockstep::data
