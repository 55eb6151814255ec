// SPDX-License-Identifier: Apache-2.0
// A dataset: something with a size that can be read by index.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::data {

// Reads whole batches. size() counts samples. batch(ids) returns those samples in that order, in whatever type suits
// the training loop; it must take an empty `ids`, must keep them if somebody downstream needs the global sample ids
// (dropout does), and is called by several worker threads at once.
template <typename D>
concept Dataset = requires(const D& dataset, std::span<const std::int64_t> ids) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  dataset.batch(ids);
};

// A Dataset that begins to read samples before they are asked for, and doesn't wait; called as batch() is. A hint: it
// ignores samples that it doesn't have.
template <typename D>
concept Prefetches = requires(const D& dataset, std::span<const std::int64_t> ids) {
  dataset.prefetch(ids);
};

// Reads sample by sample: get(id) returns one. Same rules.
template <typename D>
concept SampleDataset = requires(const D& dataset, std::int64_t id) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  dataset.get(id);
};

namespace detail {

struct NotADataset {};

// The type that batch(ids) of a Dataset returns. For any other type the compiler's error says which member is missing.
template <typename D>
constexpr auto batch_of() {
  using Ids = std::span<const std::int64_t>;
  constexpr bool kHasSize = requires(const D& it) {
    { it.size() } -> std::convertible_to<std::int64_t>;
  };
  constexpr bool kHasBatch = requires(const D& it, Ids ids) { it.batch(ids); };
  constexpr bool kHasMutableBatch = requires(D & it, Ids ids) { it.batch(ids); };
  static_assert(kHasSize, "DataLoader: the dataset has no `std::int64_t size() const`, its number of samples");
  static_assert(kHasBatch || kHasMutableBatch || !SampleDataset<D>,
                "DataLoader: the dataset has get(id), but no batch(ids): wrap it in lockstep::data::BySample, or in "
                "lockstep::data::Collated if get(id) returns a lockstep::data::Sample");
  static_assert(kHasBatch || !kHasMutableBatch,
                "DataLoader: the dataset's batch(ids) is not const; several threads call it at once");
  static_assert(kHasBatch || kHasMutableBatch || SampleDataset<D>,
                "DataLoader: the dataset has no `Batch batch(std::span<const std::int64_t> ids) const`, where Batch is "
                "any type");
  if constexpr (kHasBatch) {
    return std::type_identity<decltype(std::declval<const D&>().batch(Ids()))>();
  } else {
    return std::type_identity<NotADataset>();
  }
}

}  // namespace detail

// A batch of a SampleDataset.
template <typename Sample>
struct SampleBatch {
  std::vector<std::int64_t> ids;  // global sample ids
  std::vector<Sample> samples;    // samples[i] is sample ids[i]
};

// Makes a Dataset of a SampleDataset.
template <SampleDataset D>
class BySample {
 public:
  using Sample = decltype(std::declval<const D&>().get(std::int64_t{}));

  explicit BySample(D dataset) : dataset_(std::move(dataset)) {}
  std::int64_t size() const { return dataset_.size(); }
  SampleBatch<Sample> batch(std::span<const std::int64_t> ids) const {
    SampleBatch<Sample> result{{ids.begin(), ids.end()}, {}};
    result.samples.reserve(ids.size());
    for (const std::int64_t id : ids) result.samples.push_back(dataset_.get(id));
    return result;
  }

 private:
  D dataset_;
};

}  // namespace lockstep::data
