// SPDX-License-Identifier: Apache-2.0
// Samplers for torch::data that deal out the samples of each epoch to the ranks.
//
//   lockstep::libtorch::GlobalBatchSampler sampler(dataset.size().value(), *group, {.global_batch = 256});
//   lockstep::libtorch::DataLoader loader(dataset, sampler);                                        // data_loader.h
//
//   lockstep::libtorch::DistributedSampler sampler(dataset.size().value(), *group);
//   auto loader = torch::data::make_data_loader(dataset, sampler, 64);                              // rows per rank
//
// The order of samples is that of the samplers of the same names in lockstep/data/sampler.h. Each begin() of the loader
// starts the next epoch, the first one 0; set_epoch() says which comes next. Copies share one state, for the loader
// takes a copy: calls of the program's sampler act on the loader's. A second loader needs a sampler of its own.
//
// Checkpoints: state() and save() give the run's place in its data, equally on all ranks, and after resume() or load()
// the next begin() continues there, at any number of ranks; a pass that runs meanwhile is not moved. Under
// lockstep::libtorch::DataLoader that place is behind the batches that the program was handed. Under torch's own loader
// it is behind the drawn samples, which with workers are up to DataLoaderOptions::max_jobs batches more.
//
// Threads: any number at once, as torch's chunked datasets draw. Failure: InvalidArgument for numbers out of their
// range, and for a state of another length, seed or order.
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

// The order of PyTorch's DistributedSampler: that of torch.randperm with a generator of seed + epoch. For the same
// samples as a program in Python. Copies share a list of the epoch that is read, 8 bytes per sample on each rank; it is
// made when it is first read.
LOCKSTEP_API data::EpochOrder randperm_order(std::int64_t length, std::uint64_t seed);

// The base of the samplers below.
class LOCKSTEP_API RankSampler : public ::torch::data::samplers::Sampler<> {
 public:
  using Index = std::vector<std::size_t>;

  // Sets the epoch of the next begin(); equal on all ranks. If it is the epoch of load() or resume(), begin() continues
  // where that said.
  void set_epoch(std::int64_t epoch);
  // The next begin() resumes behind `state`; with nothing left, in the next epoch, unless set_epoch() asks for this
  // one: then it is over at once. A pass that has begun continues as it was.
  void resume(const data::SamplerState& state);
  // The place of the run in its data; after resume(), until the next begin(), the argument of resume().
  data::SamplerState state() const;
  // Batches of the pass that the next begin() starts, equal on all ranks. `batch_size`, rows per rank, is the loader's;
  // it counts only if the sampler's options have no size.
  std::size_t num_batches(std::size_t batch_size = 1) const;
  // The same of a whole epoch.
  std::size_t batches_of_epoch(std::size_t batch_size = 1) const;

  void reset(::torch::optional<std::size_t> new_length = {}) override;
  ::torch::optional<Index> next(std::size_t batch_size) override;
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

  // The rank that it reads for, and of how many.
  int rank() const;
  int world() const;
  // For DistributedDataParallel::watch(): of the pass that has begun. May outlive the sampler.
  DataIdentity identity() const;

  // For DataLoader, which hands out every batch that some rank has rows of: from now on next() gives one index where
  // this rank has none, and took_batch() says in order, for each batch, whether that is so.
  void hand_out_every_batch();
  bool took_batch();

  struct LOCKSTEP_LOCAL State;

 protected:
  explicit RankSampler(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;  // the state that copies share
};

// PyTorch's DistributedSampler: rank r reads positions r, r + world, r + 2 world, ... of the epoch's order. Without
// rows_per_rank the loader's batch size counts the rows of a rank. With Uneven::exact and torch's own loader, a rank
// without rows has a batch less, as suits evaluation.
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

// The epoch is cut into global batches as one process would, and each is split over the ranks in order, 64 over 3 as
// 22 + 22 + 20: a run computes the same at every world size, and every sample comes once per epoch. A short last batch
// may leave ranks without rows: DataLoader hands them a batch of 0 rows. torch's own loader can't, so under it reset()
// throws InvalidArgument, on every rank, where such a batch would come.
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
