// Batches of a dataset, read ahead by worker threads, in an order that no thread can change.
//
//   DataLoader loader(dataset, BatchShardSampler(dataset.size(), rank, world), {.batch_size = 64, .workers = 2});
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     loader.set_epoch(epoch);
//     for (const auto& batch : loader) ...
//   }
//
// Threads: the loader and its iterators belong to one thread; the dataset is read by `workers` others.
// Failure: what the dataset throws while it reads a batch comes out of the iterator (begin or ++) that reaches this
//   batch: InvalidArgument and CorruptData as such, everything else as Error, with batch, epoch and sample ids before
//   the original text; the original is nested in it (std::rethrow_if_nested).
// Leaving the loop early stops the workers; the next begin() starts the epoch anew.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/prefetch.h"
#include "lockstep/data/sampler.h"

namespace lockstep::data {

struct LoaderOptions {
  std::int64_t batch_size = 1;  // as the sampler counts it: rows per rank, or of all ranks together
  int workers = 0;              // threads that read ahead; 0 reads in the caller's thread, when a batch is wanted
  int prefetch = 2;             // batches read ahead per worker
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);  // of a batch that a worker reads
};

namespace detail {

using ReadBatch = std::function<std::shared_ptr<void>(std::span<const std::int64_t> ids)>;

// DataLoader without its type: one source file instead of a header in every program.
class LOCKSTEP_API LoaderCore {
 public:
  LoaderCore(ReadBatch read, std::shared_ptr<Sampler> sampler, const LoaderOptions& options);
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }
  std::int64_t num_batches() const { return sampler_->num_batches(options_.batch_size); }
  const LoaderOptions& options() const { return options_; }
  std::shared_ptr<OrderedPrefetch> start();

 private:
  ReadBatch read_;
  std::shared_ptr<Sampler> sampler_;
  LoaderOptions options_;
  std::int64_t epoch_ = 0;
  std::weak_ptr<OrderedPrefetch> running_;
};

}  // namespace detail

template <typename Batch>
class DataLoader {
 public:
  // One pass over the epoch; copies share it. Single pass, like every input iterator.
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;

    Iterator() = default;
    explicit Iterator(std::shared_ptr<OrderedPrefetch> epoch) : epoch_(std::move(epoch)) { ++*this; }
    // Valid until the next ++.
    Batch& operator*() const { return *batch_; }
    Batch* operator->() const { return batch_.get(); }
    Iterator& operator++() {
      batch_ = std::static_pointer_cast<Batch>(epoch_->next());
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return batch_ == nullptr; }

   private:
    std::shared_ptr<OrderedPrefetch> epoch_;
    std::shared_ptr<Batch> batch_;
  };

  // InvalidArgument if batch_size or prefetch is below 1, or workers below 0.
  template <Dataset D, std::derived_from<Sampler> S>
  DataLoader(D dataset, S sampler, const LoaderOptions& options)
      : core_(
            [dataset = std::make_shared<const D>(std::move(dataset))](std::span<const std::int64_t> ids) {
              return std::shared_ptr<void>(std::make_shared<Batch>(dataset->batch(ids)));
            },
            std::make_shared<S>(std::move(sampler)), options) {}

  // Of the epochs begun from now on; equal on all ranks. InvalidArgument in the middle of an epoch.
  void set_epoch(std::int64_t epoch) { core_.set_epoch(epoch); }
  std::int64_t epoch() const { return core_.epoch(); }
  // Batches in an epoch, equal on all ranks.
  std::int64_t num_batches() const { return core_.num_batches(); }
  std::int64_t batch_size() const { return core_.options().batch_size; }

  Iterator begin() { return Iterator(core_.start()); }
  std::default_sentinel_t end() const { return {}; }

 private:
  detail::LoaderCore core_;
};

template <Dataset D, typename S>
DataLoader(D, S, LoaderOptions)
    -> DataLoader<decltype(std::declval<const D&>().batch(std::span<const std::int64_t>{}))>;

}  // namespace lockstep::data
