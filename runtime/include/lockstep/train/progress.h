// A progress bar on stderr, drawn by rank 0: step, loss, samples per second, and what was waited for communication.
//
//   for (const auto& [x, y, ids] : progress(loader, ddp)) ...
//
// On a terminal, and under `lockstep run`, it is redrawn in place; elsewhere it is a line every 2 s.
// LOCKSTEP_PROGRESS=bar, lines or off overrides that. After the loop a summary says what training waited for after
// backward and how much communication ran behind it.
//
// Threads: one. Nothing here is collective: a bar never waits for a rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/train/distributed_data_parallel.h"

namespace lockstep {

// What one step adds.
struct ProgressStep {
  std::optional<double> loss = std::nullopt;
  std::int64_t samples = 0;                   // of all ranks
  const trace::StepRecord* record = nullptr;  // valid for the call
};

class LOCKSTEP_API Progress {
 public:
  // `total` steps, 0 if unknown. InvalidArgument if LOCKSTEP_PROGRESS is none of its values.
  Progress(const ProcessGroup& group, std::int64_t total);
  // Draws the end if finish() was not called and no exception is on its way.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After each step. Costs a clock reading; draws at most 10 times a second.
  void step(const ProgressStep& step);
  // The same from what ddp knows of its last step: this rank's loss, all ranks' weight as samples, the record.
  void step(const DistributedDataParallel& ddp) {
    step({.loss = ddp.last_loss(), .samples = ddp.last_weight(), .record = &ddp.last_step()});
  }
  // A line above the bar. Rank 0's only.
  void note(std::string_view text);
  void finish();

 private:
  struct LOCKSTEP_LOCAL Impl;
  std::unique_ptr<Impl> impl_;
};

// One epoch of a loader under a progress bar. Use it in a range-for.
template <typename Loader>
class ProgressRange {
 public:
  using LoaderIterator = decltype(std::declval<Loader&>().begin());

  class Iterator {
   public:
    Iterator(LoaderIterator inner, ProgressRange* range) : inner_(std::move(inner)), range_(range) {}
    decltype(auto) operator*() const { return *inner_; }
    Iterator& operator++() {
      range_->step();
      ++inner_;
      return *this;
    }
    bool operator==(std::default_sentinel_t end) const { return inner_ == end; }

   private:
    LoaderIterator inner_;
    ProgressRange* range_;
  };

  ProgressRange(Loader& loader, const ProcessGroup& group, const DistributedDataParallel* ddp)
      : loader_(loader), ddp_(ddp), bar_(std::make_unique<Progress>(group, loader.num_batches())) {}

  Iterator begin() { return Iterator(loader_.begin(), this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  void step() {
    if (ddp_ != nullptr) {
      bar_->step(*ddp_);
    } else {
      bar_->step({.samples = loader_.batch_size()});
    }
  }

  Loader& loader_;
  const DistributedDataParallel* ddp_;
  std::unique_ptr<Progress> bar_;
};

// With everything that ddp knows.
template <typename Batch>
ProgressRange<data::DataLoader<Batch>> progress(data::DataLoader<Batch>& loader, const DistributedDataParallel& ddp) {
  return {loader, *ddp.group(), &ddp};
}
// Without a model: steps and time left; samples as the loader's batch_size counts them.
template <typename Batch>
ProgressRange<data::DataLoader<Batch>> progress(data::DataLoader<Batch>& loader,
                                                const std::shared_ptr<ProcessGroup>& group) {
  return {loader, *group, nullptr};
}

}  // namespace lockstep
