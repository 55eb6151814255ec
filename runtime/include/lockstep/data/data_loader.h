// SPDX-License-Identifier: Apache-2.0
// Batches of a dataset, read ahead by worker threads, in an order that no thread can change.
//
//   DataLoader loader(dataset, *group, {.global_batch = 64, .workers = 2});       // or with a sampler of its own:
//   DataLoader loader(dataset, DistributedSampler(dataset.size(), *group, {.rows_per_rank = 32}), {.workers = 2});
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     for (const auto& batch : loader) ...
//   }
//
// Each begin() starts the next epoch, the first one 0, or the epoch of set_epoch() or resume(). After a loop that is
// left early, the next begin() starts the next epoch too.
//
// Threads: the loader and its iterators belong to one thread; the dataset is read by `workers` others.
// Failure: what the dataset throws while it reads a batch comes out of the iterator (begin or ++) that reaches this
//   batch: InvalidArgument and CorruptData as such, everything else as Error, with batch, epoch and sample ids before
//   the original text; the original is nested in it (std::rethrow_if_nested).
// Leaving the loop early stops the workers.
//
// Checkpoints: state() says how much of the epoch the program has been handed, by whatever number of workers, and is
// the same on all ranks; after resume(state) the first pass is over what is left, at any number of ranks.
//
//   if (fs::exists(...)) loader.resume(state);                                   // before the loop
//   for (std::int64_t epoch = loader.epoch(); epoch < 10; ++epoch) {
//     loader.set_epoch(epoch);                                                   // keeps the place in its epoch
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

// What a dataset is: something with a size that can be read by index.

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

// Work done ahead by threads and handed out in order.

// Calls produce(0), produce(1), ... produce(count - 1) on `workers` threads, at most `window` results ahead of the
// consumer, and hands the results out in index order: what comes out does not depend on how many threads there are.
//
// Threads: next() and the destructor belong to one consumer; produce is called by several workers at once.
// Failure: next() rethrows what produce threw for that index; the indices after it can still be had. Timeout names the
//   index when a result does not come.
// End: the destructor stops the workers in the middle of an epoch too. It waits for the calls of produce that are under
//   way, because those can't be interrupted: up to `timeout` and at least a second, or that second alone where next()
//   has just waited for `timeout` in vain. A call that still runs then is left behind, with a line in the log: its
//   thread ends when the call returns, and keeps `produce` and all that it holds alive until then. What produce only
//   refers to must live as long.
class LOCKSTEP_API OrderedPrefetch {
 public:
  using Item = std::shared_ptr<void>;
  using Produce = std::function<Item(std::int64_t index)>;

  // With 0 workers produce runs inside next().
  OrderedPrefetch(Produce produce, std::int64_t count, int workers, int window, std::chrono::nanoseconds timeout);
  ~OrderedPrefetch();
  OrderedPrefetch(const OrderedPrefetch&) = delete;
  OrderedPrefetch& operator=(const OrderedPrefetch&) = delete;

  // The next result in order; null after the last.
  Item next();
  // Index that next() will hand out.
  std::int64_t position() const;

 private:
  struct LOCKSTEP_LOCAL Shared;

  // Wakes the workers and waits for their end.
  void stop();

  const std::shared_ptr<Shared> state_;  // the workers' too
  const std::chrono::nanoseconds timeout_;
  bool is_overdue_ = false;  // the last next() ended by Timeout
  std::vector<std::thread> threads_;
};

struct LoaderOptions {
  int workers = 0;     // threads that read ahead; 0 reads in the caller's thread, when a batch is wanted
  int prefetch = 2;    // batches read ahead per worker
  int read_ahead = 8;  // batches before one is read, its samples are told to a dataset with prefetch(ids)
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);  // of a batch that a worker reads
};

// A loader that makes its own GlobalBatchSampler: that sampler's options, then a loader's.
struct GroupLoaderOptions {
  std::int64_t global_batch = 0;  // rows of all ranks together in a batch; must be given
  bool shuffle = true;
  std::uint64_t seed = 0;  // equal on all ranks
  bool drop_last = false;
  int micro_batches = 0;
  int workers = 0;
  int prefetch = 2;
  int read_ahead = 8;  // counts only with lockstep's own loader
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);

  GlobalBatchSamplerOptions sampler() const { return {global_batch, shuffle, seed, drop_last, micro_batches}; }
  LoaderOptions loader() const { return {workers, prefetch, read_ahead, timeout}; }
};

namespace detail {

using ReadBatch = std::function<std::shared_ptr<void>(std::span<const std::int64_t> ids)>;
using Announce = std::function<void(std::span<const std::int64_t> ids)>;
using IsOver = std::function<bool()>;

// DataLoader without its type: one source file instead of a header in every program.
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

  // One pass: the batches of the epoch, or of its rest.
  class Pass {
   public:
    Pass(OrderedPrefetch::Produce produce, std::int64_t count, const LoaderOptions& options,
         std::shared_ptr<std::int64_t> handed, std::shared_ptr<const IsOver> training_is_over);
    // Null after the last, and once the training is over.
    OrderedPrefetch::Item next();
    // next() has said so.
    bool is_over() const { return is_over_; }

   private:
    bool is_over_ = false;
    std::shared_ptr<std::int64_t> handed_;
    std::shared_ptr<const IsOver> training_is_over_;
    OrderedPrefetch prefetch_;
  };
  // Null once the training is over.
  std::shared_ptr<Pass> start();

 private:
  // InvalidArgument in the middle of a pass.
  void require_no_pass(const char* call) const;

  ReadBatch read_;
  Announce announce_;
  std::shared_ptr<Sampler> sampler_;
  LoaderOptions options_;
  bool is_resumed_ = false;   // and no pass has begun since
  bool is_asked_for_ = true;  // the sampler's epoch is that of the next pass: the first one, or set_epoch()'s
  std::weak_ptr<Pass> running_;
  std::shared_ptr<IsOver> training_is_over_ = std::make_shared<IsOver>();     // null: it is not
  std::shared_ptr<std::int64_t> handed_ = std::make_shared<std::int64_t>(0);  // batches of the last pass
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
    explicit Iterator(std::shared_ptr<detail::LoaderCore::Pass> pass) : pass_(std::move(pass)) {
      if (pass_) ++*this;
    }
    // Valid until the next ++.
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

  // InvalidArgument if prefetch is below 1, or workers or read_ahead below 0.
  template <typename D, std::derived_from<Sampler> S>
  DataLoader(D dataset, S sampler, const LoaderOptions& options = {})
      : DataLoader(std::make_shared<const D>(std::move(dataset)), std::make_shared<S>(std::move(sampler)), options) {}
  // With a GlobalBatchSampler over the dataset. InvalidArgument as above, and the sampler's.
  template <typename D>
  DataLoader(D dataset, const RankOfGroup auto& group, const GroupLoaderOptions& options)
      : DataLoader(std::make_shared<const D>(std::move(dataset)), group, options) {}

  // Sets the epoch of the next pass; equal on all ranks. Keeps the place of a resume() in this epoch that no pass has
  // begun from yet. InvalidArgument in the middle of a pass.
  void set_epoch(std::int64_t epoch) { core_.set_epoch(epoch); }
  std::int64_t epoch() const { return core_.epoch(); }
  // The next pass resumes after `state`; if nothing is left, the next pass is the next epoch, unless set_epoch() asks
  // for this one, which is over at once. InvalidArgument if the state has another length, seed or order, and in the
  // middle of a pass.
  void resume(const SamplerState& state) { core_.resume(state); }
  // The place after the batches that the last pass has handed out, the one in the loop's body among them.
  SamplerState state() const { return core_.state(); }
  const Sampler& sampler() const { return core_.sampler(); }
  // For DistributedDataParallel::watch(): the sampler's identity(), when it is asked. May outlive the loader.
  auto identity() const { return core_.identity(); }
  // For DistributedDataParallel::watch(): once `is_over` says so, the pass ends with the batch in the loop's body, a
  // new one has no batches, and set_epoch() does nothing: the state stays where the training stopped.
  void end_when(std::function<bool()> is_over) { core_.end_when(std::move(is_over)); }
  // Returns the number of batches in a whole epoch, equal on all ranks, also after resume().
  std::int64_t num_batches() const { return core_.num_batches(); }
  // Returns the number of batches of the pass that runs, or that the next begin() starts: after resume() the rest of an
  // epoch.
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
                return detail::batch_of<D>(), nullptr;  // says what is missing
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
