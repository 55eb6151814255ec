// SPDX-License-Identifier: Apache-2.0
// DataLoader hands out the batches of a dataset in a fixed order, while worker threads read ahead.
//
//   DataLoader loader(dataset, *group, {.global_batch = 64, .workers = 2});       // or with a sampler of its own:
//   DataLoader loader(dataset, DistributedSampler(dataset.size(), *group, {.rows_per_rank = 32}), {.workers = 2});
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     for (const auto& batch : loader) ...
//   }
//
// The first call of begin() starts epoch 0, and each later call of begin() starts the next epoch, even if the program
// left the previous loop early. To choose another epoch for the next begin(), call set_epoch() or resume().
//
// Threads: only one thread may use a loader and its iterators; `workers` further threads read the dataset.
// Failure: if the dataset throws while it reads a batch, begin() or ++ throws when the iterator reaches this batch.
//   The dataset's InvalidArgument or CorruptData keeps its type; any other exception becomes an Error. The message
//   of the exception holds the batch, the epoch, the sample ids and the original text; the original exception is
//   nested (std::rethrow_if_nested).
// If the program leaves the loop over the batches early, the worker threads stop.
//
// Checkpoints: state() records how many samples of the epoch the loader has handed out, and is equal on all ranks.
//   After resume(state), the next pass reads the rest of the epoch; the number of ranks may have changed.
//
//   if (fs::exists(...)) loader.resume(state);                                   // before the loop
//   for (std::int64_t epoch = loader.epoch(); epoch < 10; ++epoch) {
//     loader.set_epoch(epoch);                                                   // keeps a resumed place
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/data/sampler.h"

namespace lockstep::data {

// The concepts below say which functions a dataset must have: a dataset has a size and can be read by index.

// A Dataset reads whole batches. size() returns the number of samples. batch(ids) returns the samples whose ids are
// `ids`, in the order of `ids`, in any type that suits the training loop. Several worker threads call batch() at once,
// and `ids` may be empty. The batch must contain `ids` if the model needs global sample ids, for example for dropout.
template <typename D>
concept Dataset = requires(const D& dataset, std::span<const std::int64_t> ids) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  dataset.batch(ids);
};

// Prefetches is a Dataset with prefetch(ids), which starts to read the samples `ids` and returns without waiting for
// the samples. Several worker threads call prefetch() at once. prefetch() is a hint, and must ignore ids of samples
// that the dataset doesn't have.
template <typename D>
concept Prefetches = requires(const D& dataset, std::span<const std::int64_t> ids) {
  dataset.prefetch(ids);
};

// A SampleDataset reads one sample at a time: get(id) returns sample `id`. Several worker threads call get() at once.
template <typename D>
concept SampleDataset = requires(const D& dataset, std::int64_t id) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  dataset.get(id);
};

namespace detail {

struct NotADataset {};

// Returns a std::type_identity of the type that D::batch(ids) returns. If D is not a Dataset, a static_assert says
// which member D lacks.
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

// SampleBatch is a batch of a SampleDataset.
template <typename Sample>
struct SampleBatch {
  std::vector<std::int64_t> ids;  // global sample ids
  std::vector<Sample> samples;    // samples[i] is sample ids[i]
};

// BySample makes a Dataset out of a SampleDataset.
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

// OrderedPrefetch calls a function ahead of time on several threads and hands out the results in order.

// OrderedPrefetch calls produce(0), produce(1), ... produce(count - 1) on `workers` threads, at most `window` results
// ahead of the consumer, and hands the results out in index order. The results do not depend on the number of threads.
//
// Threads: one thread, the consumer, calls next() and the destructor; several workers call produce at once.
// Failure: if produce throws for an index, next() rethrows the exception when next() reaches this index; later calls of
//   next() still return the results of later indices. If a result is not ready within the timeout, next() throws
//   Timeout; the message names the index of the result.
// End: the destructor stops the workers, also in the middle of an epoch. Running calls of produce can't be interrupted,
//   so the destructor waits for such calls for up to `timeout` or one second, whichever is longer. If next() has just
//   thrown Timeout, the destructor waits for up to one second. If a call of produce still runs after the wait, the
//   destructor logs a warning and returns. A worker thread keeps `produce` and the objects that `produce` captured
//   alive until the thread's call of `produce` returns. Objects that `produce` only refers to must live until every
//   call of `produce` has returned.
class LOCKSTEP_API OrderedPrefetch {
 public:
  using Item = std::shared_ptr<void>;
  using Produce = std::function<Item(std::int64_t index)>;

  // If `workers` is 0, next() calls produce on the consumer's thread.
  OrderedPrefetch(Produce produce, std::int64_t count, int workers, int window, std::chrono::nanoseconds timeout);
  ~OrderedPrefetch();
  OrderedPrefetch(const OrderedPrefetch&) = delete;
  OrderedPrefetch& operator=(const OrderedPrefetch&) = delete;

  // Returns the next result in order, or null after the last result.
  Item next();
  // Returns the index of the result that next() will return.
  std::int64_t position() const;

 private:
  struct LOCKSTEP_LOCAL Shared;

  // Wakes the worker threads, and waits until the threads have ended or the time limit of the destructor has passed.
  void stop();

  const std::shared_ptr<Shared> state_;  // shared with the workers
  const std::chrono::nanoseconds timeout_;
  bool is_overdue_ = false;  // whether the last next() threw Timeout
  std::vector<std::thread> threads_;
};

struct LoaderOptions {
  int workers = 0;   // number of threads that read ahead; with 0 the caller's thread reads each batch
  int prefetch = 2;  // number of batches that each worker reads ahead
  // The number of batches that the loader announces by prefetch(ids) before it reads them by batch(ids), if the dataset
  // has prefetch().
  int read_ahead = 8;
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);  // time limit for a batch that a worker reads
};

// GroupLoaderOptions holds the options of a loader that makes its own GlobalBatchSampler: first the options of the
// sampler, then the options of the loader.
struct GroupLoaderOptions {
  std::int64_t global_batch = 0;  // number of rows of all ranks together in a batch; must be given
  bool shuffle = true;
  std::uint64_t seed = 0;  // seed of the shuffle, equal on all ranks
  bool drop_last = false;
  int micro_batches = 0;
  int audit_every = 0;
  int workers = 0;
  int prefetch = 2;
  int read_ahead = 8;  // used only by lockstep's own loader
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);

  GlobalBatchSamplerOptions sampler() const {
    return {global_batch, shuffle, seed, drop_last, micro_batches, audit_every};
  }
  LoaderOptions loader() const { return {workers, prefetch, read_ahead, timeout}; }
};

namespace detail {

using ReadBatch = std::function<std::shared_ptr<void>(std::span<const std::int64_t> ids)>;
using Announce = std::function<void(std::span<const std::int64_t> ids)>;
using IsOver = std::function<bool()>;

// LoaderCore is the part of DataLoader that does not depend on the type of the batches, so that a source file can
// define the functions of LoaderCore.
class LOCKSTEP_API LoaderCore {
 public:
  // `announce` may be null.
  LoaderCore(ReadBatch read, Announce announce, std::shared_ptr<Sampler> sampler, const LoaderOptions& options);
  void set_epoch(std::int64_t epoch);
  void resume(const SamplerState& state);
  SamplerState state() const { return sampler_->state_after(*handed_); }
  void end_when(IsOver is_over) { *training_is_over_ = std::move(is_over); }
  std::int64_t epoch() const { return sampler_->order().epoch(); }
  std::int64_t num_batches() const { return sampler_->num_batches_after(0); }
  std::int64_t batches_in_pass() const;
  const Sampler& sampler() const { return *sampler_; }
  auto identity() const {
    return [sampler = sampler_] { return sampler->identity(); };
  }

  // A Pass object hands out the batches of one pass over an epoch. After resume(), the pass has only the batches of the
  // rest of the epoch.
  class Pass {
   public:
    Pass(OrderedPrefetch::Produce produce, std::int64_t count, const LoaderOptions& options,
         std::shared_ptr<std::int64_t> handed, std::shared_ptr<const IsOver> training_is_over);
    // Returns the next batch. Returns null after the last batch, and once the training is over.
    OrderedPrefetch::Item next();
    // Returns whether next() has returned null.
    bool is_over() const { return is_over_; }

   private:
    bool is_over_ = false;
    std::shared_ptr<std::int64_t> handed_;
    std::shared_ptr<const IsOver> training_is_over_;
    OrderedPrefetch prefetch_;
  };
  // Starts the next pass. Returns null once the training is over.
  std::shared_ptr<Pass> start();

 private:
  // Throws InvalidArgument, with a message that names the function `call`, if a pass has begun and has not ended.
  void require_no_pass(const char* call) const;

  ReadBatch read_;
  Announce announce_;
  std::shared_ptr<Sampler> sampler_;
  LoaderOptions options_;
  bool is_resumed_ = false;  // whether no pass has begun since the last call of resume()
  // True if the next pass reads the sampler's current epoch instead of the next epoch. is_asked_for_ is true before the
  // first pass, after set_epoch(), and after resume() in the middle of an epoch.
  bool is_asked_for_ = true;
  std::weak_ptr<Pass> running_;
  std::shared_ptr<IsOver> training_is_over_ = std::make_shared<IsOver>();     // null: training never ends
  std::shared_ptr<std::int64_t> handed_ = std::make_shared<std::int64_t>(0);  // batches handed out in the last pass
};

}  // namespace detail

template <typename Batch>
class DataLoader {
 public:
  // Iterator is an input iterator that makes one pass over the epoch. Copies of an iterator share the pass.
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;

    Iterator() = default;
    explicit Iterator(std::shared_ptr<detail::LoaderCore::Pass> pass) : pass_(std::move(pass)) {
      if (pass_) ++*this;
    }
    // Returns the current batch, which stays valid until the next call of ++.
    Batch& operator*() const { return *batch_; }
    Batch* operator->() const { return batch_.get(); }
    Iterator& operator++() {
      batch_ = std::static_pointer_cast<Batch>(pass_->next());
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return batch_ == nullptr; }

   private:
    std::shared_ptr<detail::LoaderCore::Pass> pass_;
    std::shared_ptr<Batch> batch_;
  };

  // Throws InvalidArgument if `prefetch` is below 1, or if `workers` or `read_ahead` is below 0.
  template <typename D, std::derived_from<Sampler> S>
  DataLoader(D dataset, S sampler, const LoaderOptions& options = {})
      : DataLoader(std::make_shared<const D>(std::move(dataset)), std::make_shared<S>(std::move(sampler)), options) {}
  // Makes a loader with its own GlobalBatchSampler over the dataset. Throws InvalidArgument if an option is invalid for
  // the loader (see the constructor above) or for the GlobalBatchSampler.
  template <typename D>
  DataLoader(D dataset, const RankOfGroup auto& group, const GroupLoaderOptions& options)
      : DataLoader(std::make_shared<const D>(std::move(dataset)), group, options) {}

  // Sets the epoch of the next pass; `epoch` must be equal on all ranks. If resume() set a place in epoch `epoch` and
  // no pass has begun since, the next pass still begins at this place. Throws InvalidArgument if set_epoch() is called
  // in the middle of a pass.
  void set_epoch(std::int64_t epoch) { core_.set_epoch(epoch); }
  std::int64_t epoch() const { return core_.epoch(); }
  // Makes the next pass begin at the place in the data that `state` records. If `state` records the end of an epoch,
  // the next pass reads the next epoch. If set_epoch() is called after resume() with an epoch that `state` records as
  // finished, the next pass has no batches. Throws InvalidArgument if `state` has another length, seed or order than
  // the sampler, or if resume() is called in the middle of a pass.
  void resume(const SamplerState& state) { core_.resume(state); }
  // Returns the place in the epoch after the batches that the last pass has handed out. The batch that the body of the
  // loop is using counts as handed out.
  SamplerState state() const { return core_.state(); }
  const Sampler& sampler() const { return core_.sampler(); }
  // Returns a function that calls Sampler::identity() of the loader's sampler and returns the result;
  // DistributedDataParallel::watch() calls the function. The function may outlive the loader.
  auto identity() const { return core_.identity(); }
  // Makes passes over the data end once `is_over` returns true; DistributedDataParallel::watch() calls end_when().
  // Once `is_over` returns true, the pass ends after the current batch, new passes have no batches, and set_epoch()
  // does nothing. After `is_over` has returned true, state() therefore keeps returning the place at which the
  // training stopped.
  void end_when(std::function<bool()> is_over) { core_.end_when(std::move(is_over)); }
  // Returns the number of batches in a whole epoch, even after resume(). The number is equal on all ranks.
  std::int64_t num_batches() const { return core_.num_batches(); }
  // Returns the number of batches in the running pass or, between passes, in the pass that the next begin() starts.
  // After resume(), the next pass has only the batches of the rest of the epoch.
  std::int64_t batches_in_pass() const { return core_.batches_in_pass(); }

  Iterator begin() { return Iterator(core_.start()); }
  std::default_sentinel_t end() const { return {}; }

 private:
  template <typename D>
  DataLoader(std::shared_ptr<const D> dataset, const RankOfGroup auto& group, const GroupLoaderOptions& options)
      : DataLoader(dataset, std::make_shared<GlobalBatchSampler>(dataset->size(), group, options.sampler()),
                   options.loader()) {}
  template <typename D>
  DataLoader(std::shared_ptr<const D> dataset, std::shared_ptr<Sampler> sampler, const LoaderOptions& options)
      : core_(
            [dataset](std::span<const std::int64_t> ids) -> std::shared_ptr<void> {
              if constexpr (Dataset<D>) {
                return std::make_shared<Batch>(dataset->batch(ids));
              } else {
                return detail::batch_of<D>(), nullptr;  // batch_of's static_assert says which member is missing
              }
            },
            announce_to(dataset), std::move(sampler), options) {}
  template <typename D>
  static detail::Announce announce_to(const std::shared_ptr<const D>& dataset) {
    if constexpr (Prefetches<D>) {
      return [dataset](std::span<const std::int64_t> ids) { dataset->prefetch(ids); };
    } else {
      return nullptr;
    }
  }

  detail::LoaderCore core_;
};

template <typename D, std::derived_from<Sampler> S>
DataLoader(D, S, LoaderOptions = {}) -> DataLoader<typename decltype(detail::batch_of<D>())::type>;
template <typename D, RankOfGroup G>
requires(!std::derived_from<G, Sampler>) DataLoader(D, const G&, GroupLoaderOptions)
->DataLoader<typename decltype(detail::batch_of<D>())::type>;

}  // namespace lockstep::data
