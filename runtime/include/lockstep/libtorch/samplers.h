// SPDX-License-Identifier: Apache-2.0
// Samplers for torch::data that deal out the samples of each epoch to the ranks.
//
//   lockstep::libtorch::GlobalBatchSampler sampler(dataset.size().value(), *group, {.global_batch = 256});
//   lockstep::libtorch::DataLoader loader(dataset, sampler);                                        // data_loader.h
//
//   lockstep::libtorch::DistributedSampler sampler(dataset.size().value(), *group);
//   auto loader = torch::data::make_data_loader(dataset, sampler, 64);                              // rows per rank
//
// The order of samples is the order of the samplers of the same names in lockstep/data/sampler.h. The loader's first
// begin() starts epoch 0, and each later begin() the next epoch; set_epoch() chooses another epoch. Copies of a sampler
// share one state, because the loader takes a copy: calls of the program's sampler act on the loader's copy. A second
// loader needs a second sampler.
//
// Threads: any number of threads may use a sampler at once, as torch's chunked datasets do. Failure: calls throw
// InvalidArgument for numbers out of their range, and for a state of another length, seed or order.
#pragma once

#include <torch/data/samplers/base.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/sampler.h"
#include "lockstep/ddp/data_identity.h"

namespace lockstep::libtorch {

using data::DistributedSamplerOptions;
using data::GlobalBatchSamplerOptions;
using data::Uneven;

// Returns the order of PyTorch's DistributedSampler, torch.randperm with a generator of seed + epoch, to read the same
// samples as a program in Python. Copies of the order share a list of the epoch that is read, 8 bytes per sample on
// each rank. The list is made when an epoch is first read.
LOCKSTEP_API data::EpochOrder randperm_order(std::int64_t length, std::uint64_t seed);

// RankSampler is the base class of the samplers below.
//
// Checkpoints: state() and save() give the run's place in its data, equal on all ranks. After resume() or load()
// the next begin() continues at the saved place, at any number of ranks; a pass that is running is not moved. Under
// lockstep::libtorch::DataLoader the place is the end of the batches that the program was handed. Under torch's own
// loader the place is the end of the drawn samples, which with workers are up to DataLoaderOptions::max_jobs
// batches more.
class LOCKSTEP_API RankSampler : public ::torch::data::samplers::Sampler<> {
 public:
  using Index = std::vector<std::size_t>;

  // Sets the epoch of the next begin(), equal on all ranks. If `epoch` is the epoch of load() or resume(), begin()
  // continues at the place that load() or resume() gave.
  void set_epoch(std::int64_t epoch);
  // Makes the next begin() continue after `state`. If the epoch of `state` has no samples left, begin() starts the
  // next epoch; but if set_epoch() asks for the finished epoch, the pass is over at once. A pass that has begun
  // continues unchanged.
  void resume(const data::SamplerState& state);
  // Returns the place of the run in its data; after resume(), until the next begin(), the argument of resume().
  data::SamplerState state() const;
  // Returns the number of batches of the pass that the next begin() starts, equal on all ranks. `batch_size` is the
  // loader's number of rows per rank, and counts only if the sampler's options have no size.
  std::size_t num_batches(std::size_t batch_size = 1) const;
  // The same of a whole epoch.
  std::size_t batches_of_epoch(std::size_t batch_size = 1) const;

  void reset(::torch::optional<std::size_t> new_length = {}) override;
  ::torch::optional<Index> next(std::size_t batch_size) override;
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

  // Returns the rank that the sampler reads for.
  int rank() const;
  int world() const;
  // Returns the identity of the pass that has begun, for DistributedDataParallel::watch(). The result may outlive
  // the sampler.
  DataIdentity identity() const;

  // Prepares the sampler for DataLoader, which hands out every batch that some rank has rows of: next() then gives one
  // index for a batch in which this rank has no rows. took_batch() returns for each batch, in order, whether this rank
  // has rows.
  void hand_out_every_batch();
  bool took_batch();

  struct LOCKSTEP_LOCAL State;

 protected:
  explicit RankSampler(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;  // the state that copies share
};

// DistributedSampler reads like PyTorch's DistributedSampler: rank r reads positions r, r + world, r + 2 world, ... of
// the epoch's order. Without rows_per_rank the loader's batch size counts the rows of a rank. With Uneven::exact and
// torch's own loader, a rank without rows has one batch fewer, which suits evaluation.
class LOCKSTEP_API DistributedSampler : public RankSampler {
 public:
  DistributedSampler(std::size_t length, int rank, int world, const DistributedSamplerOptions& options = {});
  DistributedSampler(std::size_t length, const ProcessGroup& group, const DistributedSamplerOptions& options = {})
      : DistributedSampler(length, group.rank(), group.size(), options) {}
  // Ignores shuffle and seed, which the order decides.
  DistributedSampler(data::EpochOrder order, int rank, int world, const DistributedSamplerOptions& options = {});
  DistributedSampler(data::EpochOrder order, const ProcessGroup& group, const DistributedSamplerOptions& options = {})
      : DistributedSampler(std::move(order), group.rank(), group.size(), options) {}
};

// GlobalBatchSampler cuts the epoch into global batches as one process would, and splits each batch over the ranks in
// order, 64 rows over 3 ranks as 22 + 22 + 20. So a run computes the same at every world size, and every sample comes
// once per epoch. A short last batch may leave ranks without rows: DataLoader hands these ranks a batch of 0 rows.
// torch's own loader has no batches of 0 rows, so under torch's loader reset() throws InvalidArgument on every rank if
// a batch of the epoch leaves ranks without rows.
class LOCKSTEP_API GlobalBatchSampler : public RankSampler {
 public:
  GlobalBatchSampler(std::size_t length, int rank, int world, const GlobalBatchSamplerOptions& options);
  GlobalBatchSampler(std::size_t length, const ProcessGroup& group, const GlobalBatchSamplerOptions& options)
      : GlobalBatchSampler(length, group.rank(), group.size(), options) {}
  // Ignores shuffle and seed, which the order decides.
  GlobalBatchSampler(data::EpochOrder order, int rank, int world, const GlobalBatchSamplerOptions& options);
  GlobalBatchSampler(data::EpochOrder order, const ProcessGroup& group, const GlobalBatchSamplerOptions& options)
      : GlobalBatchSampler(std::move(order), group.rank(), group.size(), options) {}
};

}  // namespace lockstep::libtorch
