// SPDX-License-Identifier: Apache-2.0
// Defines samplers for torch::data that divide the samples of each epoch among the ranks.
//
//   lockstep::libtorch::GlobalBatchSampler sampler(dataset.size().value(), *group, {.global_batch = 256});
//   lockstep::libtorch::DataLoader loader(dataset, sampler);                                        // data_loader.h
//
//   lockstep::libtorch::DistributedSampler sampler(dataset.size().value(), *group);
//   auto loader = torch::data::make_data_loader(dataset, sampler, 64);                              // rows per rank
//
// DistributedSampler and GlobalBatchSampler read samples in the order of the samplers of the same names in
// lockstep/data/sampler.h. The loader's first begin() starts epoch 0, and each later begin() starts the next epoch;
// set_epoch() chooses another epoch. Copies of a sampler share one state: torch's loader takes a copy of the sampler,
// and the program's calls on its own sampler also act on the loader's copy. A second loader needs a second sampler.
//
// Threads: any number of threads may use one sampler at the same time; torch's chunked datasets need this.
// Failure: a sampler's functions throw InvalidArgument for numbers out of their range, and for a saved state of another
//   length, seed or order.
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

// Returns the order of PyTorch's DistributedSampler (torch.randperm with a generator of seed + epoch), so that a
// program reads the same samples as a program in Python. Copies of the order share one list of the current epoch's
// samples, with 8 bytes per sample on each rank. The list of an epoch is made when the epoch is first read.
LOCKSTEP_API data::EpochOrder randperm_order(std::int64_t length, std::uint64_t seed);

// RankSampler is the base class of the samplers below.
//
// Checkpoints: state() and save() give the run's place in its data, equal on all ranks. After resume() or load() the
// next begin() continues at the saved place, with any number of ranks. A call of resume() or load() does not change a
// pass that has already begun. With lockstep::libtorch::DataLoader, the saved place is the end of the batches that the
// program has received. With torch's own loader, the saved place is the end of the samples that the loader has drawn;
// workers draw up to DataLoaderOptions::max_jobs batches ahead.
class LOCKSTEP_API RankSampler : public ::torch::data::samplers::Sampler<> {
 public:
  using Index = std::vector<std::size_t>;

  // Sets the epoch of the next begin(); `epoch` must be equal on all ranks. If load() or resume() gave a place in
  // `epoch`, begin() continues at this place.
  void set_epoch(std::int64_t epoch);
  // Makes the next begin() continue after `state`. If the epoch of `state` has no samples left, begin() starts the next
  // epoch. If the program calls set_epoch() with the finished epoch after resume(), the next pass is over at once. A
  // pass that has begun continues unchanged.
  void resume(const data::SamplerState& state);
  // Returns the run's place in the data: the epoch, and the number of samples consumed in the epoch. Between resume()
  // and the next begin(), state() returns the argument of resume().
  data::SamplerState state() const;
  // Returns the number of batches of the pass that the next begin() starts, equal on all ranks. `batch_size` is the
  // loader's number of rows per rank, and has an effect only if the sampler's options set no batch size.
  std::size_t num_batches(std::size_t batch_size = 1) const;
  // Returns the number of batches of a whole epoch, equal on all ranks.
  std::size_t batches_of_epoch(std::size_t batch_size = 1) const;

  void reset(::torch::optional<std::size_t> new_length = {}) override;
  ::torch::optional<Index> next(std::size_t batch_size) override;
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

  // Returns the rank for which the sampler reads samples.
  int rank() const;
  int world() const;
  // Returns, for DistributedDataParallel::watch(), a function that returns the numbers that choose the samples of the
  // pass that has begun. The function may outlive the sampler.
  DataIdentity identity() const;

  // Prepares the sampler for lockstep's DataLoader, which hands out every batch in which some rank has rows. After the
  // call, next() gives one index for a batch in which this rank has no rows. The function took_batch() returns, for
  // each batch in order, whether this rank has rows in the batch.
  void hand_out_every_batch();
  bool took_batch();

  struct LOCKSTEP_LOCAL State;

 protected:
  explicit RankSampler(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;  // the state that copies share
};

// DistributedSampler reads like PyTorch's DistributedSampler: rank r reads positions r, r + world, r + 2 world, ... of
// the epoch's order. Without rows_per_rank the loader's batch size is the number of rows per rank. With Uneven::exact
// and torch's own loader, a rank without rows in the last batch gets one batch fewer than other ranks; a program may
// use this to evaluate a model.
class LOCKSTEP_API DistributedSampler : public RankSampler {
 public:
  DistributedSampler(std::size_t length, int rank, int world, const DistributedSamplerOptions& options = {});
  DistributedSampler(std::size_t length, const ProcessGroup& group, const DistributedSamplerOptions& options = {})
      : DistributedSampler(length, group.rank(), group.size(), options) {}
  // Reads the samples in `order`, so the options shuffle and seed have no effect.
  DistributedSampler(data::EpochOrder order, int rank, int world, const DistributedSamplerOptions& options = {});
  DistributedSampler(data::EpochOrder order, const ProcessGroup& group, const DistributedSamplerOptions& options = {})
      : DistributedSampler(std::move(order), group.rank(), group.size(), options) {}
};

// GlobalBatchSampler cuts the epoch into global batches as one process would, and splits each batch over the ranks in
// order: 64 rows over 3 ranks become 22 + 22 + 20 rows. A run with a GlobalBatchSampler computes the same results at
// every world size, and reads every sample once per epoch. A short last batch may leave ranks without rows; lockstep's
// DataLoader hands these ranks a batch of 0 rows. The loader of torch has no batches of 0 rows: with torch's loader,
// reset() throws InvalidArgument on every rank if a batch of the epoch leaves ranks without rows.
class LOCKSTEP_API GlobalBatchSampler : public RankSampler {
 public:
  GlobalBatchSampler(std::size_t length, int rank, int world, const GlobalBatchSamplerOptions& options);
  GlobalBatchSampler(std::size_t length, const ProcessGroup& group, const GlobalBatchSamplerOptions& options)
      : GlobalBatchSampler(length, group.rank(), group.size(), on_hosts_of(group, options)) {}
  // Reads the samples in `order`, so the options shuffle and seed have no effect.
  GlobalBatchSampler(data::EpochOrder order, int rank, int world, const GlobalBatchSamplerOptions& options);
  GlobalBatchSampler(data::EpochOrder order, const ProcessGroup& group, const GlobalBatchSamplerOptions& options)
      : GlobalBatchSampler(std::move(order), group.rank(), group.size(), on_hosts_of(group, options)) {}

 private:
  // Sets ranks_per_host to the largest number of ranks of a host.
  static GlobalBatchSamplerOptions on_hosts_of(const ProcessGroup& group, GlobalBatchSamplerOptions options);
};

}  // namespace lockstep::libtorch
