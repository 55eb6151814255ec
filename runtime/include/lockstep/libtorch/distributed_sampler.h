// Which samples this rank reads, for torch::data: the samples of each epoch, dealt out to the ranks.
//
//   lockstep::libtorch::DistributedSampler sampler(dataset.size().value(), group->rank(), group->size());
//   auto loader = torch::data::make_data_loader(dataset, sampler, 64);        // 64 rows of this rank
//
// Rank r reads positions r, r + world, r + 2 world, ... of the epoch's order, which is the same on every machine. Each
// begin() of the loader starts the next epoch, the first one 0; set_epoch() says which comes next. Copies are one
// sampler, for the loader takes a copy: what is asked of the program's is of the loader's. A second loader takes a
// sampler of its own.
//
// Checkpoints: save() writes the epoch and how many samples have been drawn, and after load() the next begin() goes on
// there. A loader with workers draws ahead of what it has returned, up to DataLoaderOptions::max_jobs batches: a
// program that saves within an epoch counts its batches and calls resume(), or has no workers.
//
// Threads: one at a time. Failure: InvalidArgument for numbers out of their range, and for an archive of another length
// or number of ranks.
#pragma once

#include <torch/data/samplers/base.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/data/sampler.h"

namespace lockstep::libtorch {

// What becomes of a dataset whose length the ranks don't divide.
enum class Uneven : std::uint8_t {
  pad,    // samples from the epoch's front come twice: as many on every rank. PyTorch's default
  drop,   // the epoch's tail is left out: as many on every rank
  exact,  // every sample once: some ranks have one more. For evaluation, where each rank counts for itself; in training
          // such a rank may be alone with its last batch, and the others call step_without_data()
};

struct SamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;  // equal on all ranks
  Uneven uneven = Uneven::pad;
};

class LOCKSTEP_API DistributedSampler : public ::torch::data::samplers::Sampler<> {
 public:
  using Index = std::vector<std::size_t>;

  DistributedSampler(std::size_t length, int rank, int world, const SamplerOptions& options = {});

  // Of the next begin(); equal on all ranks. That goes on where load() or resume() said, if it is their epoch.
  void set_epoch(std::int64_t epoch);
  // The next begin() goes on in `epoch`, behind the first `samples` of this rank's; with none left, in the next epoch.
  void resume(std::int64_t epoch, std::size_t samples);
  // Samples of this rank in an epoch.
  std::size_t size() const;
  // Batches of the rank that has most, rank 0.
  std::size_t most_batches(std::size_t batch_size) const;

  void reset(::torch::optional<std::size_t> new_length = {}) override;
  ::torch::optional<Index> next(std::size_t batch_size) override;
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

 private:
  // What copies share.
  struct State {
    std::size_t length = 0;
    std::int64_t next_epoch = 0;
    std::int64_t epoch = 0;
    std::size_t position = 0;  // samples of the epoch that this rank has drawn
    bool is_resumed = false;   // the next reset() keeps epoch and position
    data::EpochOrder order;
  };

  std::size_t samples_of(int rank) const;

  int rank_;
  int world_;
  SamplerOptions options_;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::libtorch
