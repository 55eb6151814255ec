// SPDX-License-Identifier: Apache-2.0
// DataLoader is torch's data loader for a dataset whose samples are divided among the ranks: every rank gets equally
// many batches, and a run can resume within an epoch.
//
//   lockstep::libtorch::DataLoader loader(dataset, *group, {.global_batch = 256, .workers = 2});
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     for (auto& batch : loader) {
//       optimizer.zero_grad();
//       torch::nll_loss(ddp(batch.data), batch.target).backward();
//       optimizer.step();
//     }
//   }
//
// Every rank gets a batch for every step. If a short last batch leaves a rank without rows, the rank gets a batch of 0
// rows. The program also runs forward, loss and backward on a batch of 0 rows; the loss may be NaN and counts with
// weight 0. If the network can't run on 0 rows, call ddp.step_without_data() in place of forward and backward where
// batch.data.size(0) is 0.
//
// Threads: one thread uses a DataLoader, and each worker reads its own copy of the dataset.
// Failure: a DataLoader's functions throw the errors of torch's loader, and InvalidArgument for options with which the
//   ranks would read different numbers of batches. After a timeout of torch's loader, the destructor and the next
//   begin() wait at most one second for the workers. Workers that have not ended after one second keep running, with
//   their copies of the dataset.
#pragma once

#include <torch/data/dataloader/stateless.h>
#include <torch/data/dataloader_options.h>
#include <torch/data/example.h>
#include <torch/data/worker_exception.h>

#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/libtorch/samplers.h"
#include "lockstep/trace/span.h"

namespace lockstep::libtorch {

// Removes all rows from `batch`; the batch's tensors keep their other dimensions. A program that has its own batch type
// must define remove_rows() in the type's namespace.
inline void remove_rows(at::Tensor& batch) { batch = batch.narrow(0, 0, 0); }
template <typename Item>
void remove_rows(std::vector<Item>& batch) {
  batch.clear();
}
template <typename Data, typename Target>
void remove_rows(::torch::data::Example<Data, Target>& batch) {
  remove_rows(batch.data);
  remove_rows(batch.target);
}
template <typename Data>
void remove_rows(::torch::data::Example<Data, ::torch::data::example::NoTarget>& batch) {
  remove_rows(batch.data);
}

template <typename Batch>
concept HasRemovableRows = requires(Batch& batch) {
  remove_rows(batch);
};

// Returns `options`. Throws InvalidArgument if `options` turn enforce_ordering off, or turn drop_last on, because
// drop_last counts only this rank's rows.
LOCKSTEP_API ::torch::data::DataLoaderOptions require_common(::torch::data::DataLoaderOptions options);

namespace detail {

// Destroys `loader` on a separate thread, because the destructor of torch's loader waits for the loader's workers.
// Returns after at most one second.
LOCKSTEP_API void leave_behind(std::shared_ptr<void> loader);

LOCKSTEP_API ::torch::data::DataLoaderOptions torchs(const data::GroupLoaderOptions& options);
// Returns `size`. Throws InvalidArgument for nullopt.
LOCKSTEP_API std::size_t require_size(std::optional<std::size_t> size);
template <typename Dataset>
std::size_t size_of(const Dataset& dataset) {
  const auto size = dataset.size();
  return require_size(size ? std::optional<std::size_t>(*size) : std::nullopt);
}

template <typename Inner>
struct EndOfPass {
  bool is_overdue = false;  // whether a wait for a worker has timed out

  void operator()(Inner* inner) const {
    if (is_overdue) return leave_behind(std::shared_ptr<void>(std::shared_ptr<Inner>(inner)));
    delete inner;
  }
};

}  // namespace detail

// DataLoader deals out the batches of `Dataset`.
//
// The first begin() starts epoch 0, and each later begin() starts the next epoch; set_epoch() and resume() choose
// another epoch. If the program left a loop before the epoch's end, begin() still starts the next epoch. The place in
// sampler.state() is the end of the batches that the loader has handed out, including the batch that the loop's body is
// using. The place in sampler.state() does not include batches that the workers have read ahead.
template <typename Dataset>
class DataLoader {
  using Inner = ::torch::data::StatelessDataLoader<Dataset, RankSampler>;

 public:
  using Batch = typename Dataset::BatchType;
  static_assert(HasRemovableRows<Batch>,
                "a rank may have no rows of a batch: write void remove_rows(Batch&) in the namespace of the dataset's "
                "batch type, which leaves the batch without rows");

  // Makes a loader over `sampler`. `options.batch_size` is the number of rows per rank; only a DistributedSampler
  // without rows_per_rank uses this number.
  DataLoader(Dataset dataset, RankSampler sampler, ::torch::data::DataLoaderOptions options = {})
      : dataset_(std::move(dataset)), sampler_(std::move(sampler)), options_(require_common(std::move(options))) {
    sampler_.hand_out_every_batch();
  }
  // Makes a loader with a GlobalBatchSampler over the dataset, which must have a size. Throws the errors of
  // require_common() and of GlobalBatchSampler's constructor.
  DataLoader(Dataset dataset, const ProcessGroup& group, const data::GroupLoaderOptions& options)
      : DataLoader(dataset, GlobalBatchSampler(detail::size_of(dataset), group, options.sampler()),
                   detail::torchs(options)) {}

  // An Iterator goes once over the batches of one pass.
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;

    // Makes an iterator over a pass, or an iterator without batches if `has_pass` is false because the training
    // is over.
    explicit Iterator(DataLoader& loader, bool has_pass) : loader_(&loader), is_over_(!has_pass) {
      if (!has_pass) return;
      batch_.emplace(loader.inner_->begin());
      arrive();
    }
    Iterator(const Iterator&) = delete;
    Iterator& operator=(const Iterator&) = delete;
    Iterator(Iterator&&) noexcept = default;
    Iterator& operator=(Iterator&&) noexcept = default;
    Batch& operator*() const { return **batch_; }
    Batch* operator->() const { return &**batch_; }
    Iterator& operator++() {
      is_over_ = loader_->training_is_over_();
      if (is_over_) return *this;
      reading([&] { ++*batch_; });
      arrive();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return is_over_ || loader_->is_over_; }

   private:
    // Runs `read`. If a batch could not be read, sampler.state() counts the batch as handed out. If the wait for the
    // workers timed out, sampler.state() counts no batch as handed out.
    template <typename Read>
    void reading(Read read) {
      const trace::Span span(trace::SpanKind::data);
      try {
        read();
        loader_->inner_.get_deleter().is_overdue = false;
      } catch (const ::torch::data::WorkerException&) {
        loader_->sampler_.took_batch();
        throw;
      } catch (...) {
        if (loader_->options_.workers() == 0) loader_->sampler_.took_batch();
        loader_->inner_.get_deleter().is_overdue = loader_->options_.workers() > 0;
        throw;
      }
    }
    // Torch reads the first batch when the iterator is compared, and each later batch when the iterator is incremented.
    void arrive() {
      reading([&] { loader_->is_over_ = *batch_ == loader_->inner_->end(); });
      if (loader_->is_over_ || loader_->sampler_.took_batch()) return;
      if constexpr (HasRemovableRows<Batch>) remove_rows(**batch_);  // the static_assert above requires remove_rows()
    }

    DataLoader* loader_;
    mutable std::optional<::torch::data::Iterator<Batch>> batch_;
    bool is_over_;  // whether the training is over
  };

  Iterator begin() {
    if (training_is_over_()) return Iterator(*this, false);
    // If the last loop was left early, torch's workers still hold batches of that loop, so the inner loader is
    // made again.
    if (!is_over_ || !inner_) {
      inner_.reset(new Inner(dataset_, sampler_, options_));
      inner_.get_deleter().is_overdue = false;
    }
    is_over_ = false;
    return Iterator(*this, true);
  }
  std::default_sentinel_t end() const { return {}; }

  // The functions below, from state() to set_epoch(), read and set the sampler's place in the data. A resumed run loops
  // over its remaining epochs like this:
  //   loader.resume(place);
  //   for (std::int64_t epoch = loader.epoch(); epoch < 10; ++epoch) {
  //     loader.set_epoch(epoch);  // keeps the place in its epoch; does nothing once the training is over
  data::SamplerState state() const { return sampler_.state(); }
  std::int64_t epoch() const { return state().epoch; }
  void resume(const data::SamplerState& place) { sampler_.resume(place); }
  void set_epoch(std::int64_t epoch) {
    if (!training_is_over_()) sampler_.set_epoch(epoch);
  }

  // Returns the number of batches in a whole epoch; the number is equal on all ranks and does not change after
  // resume().
  std::size_t num_batches() const { return sampler_.batches_of_epoch(options_.batch_size()); }
  // Returns the number of batches of the pass that the next begin() starts. After resume() the next pass is the rest of
  // an epoch.
  std::size_t batches_in_pass() const { return sampler_.num_batches(options_.batch_size()); }
  RankSampler& sampler() { return sampler_; }
  DataIdentity identity() const { return sampler_.identity(); }
  // Sets the function that tells whether the training is over; DistributedDataParallel::watch() calls end_when(). Once
  // `is_over` returns true, the pass ends after the current batch, and begin() starts no other pass, so the sampler's
  // state stays where the training stopped.
  void end_when(std::function<bool()> is_over) { training_is_over_ = std::move(is_over); }

 private:
  Dataset dataset_;
  RankSampler sampler_;
  ::torch::data::DataLoaderOptions options_;
  std::unique_ptr<Inner, detail::EndOfPass<Inner>> inner_;
  bool is_over_ = true;  // whether the last pass is over
  std::function<bool()> training_is_over_ = [] { return false; };
};

}  // namespace lockstep::libtorch
