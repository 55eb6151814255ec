// SPDX-License-Identifier: Apache-2.0
// progress() draws a progress bar for a training loop on rank 0's stderr. The bar shows the step, the loss of the
// global batch, samples per second, the time spent waiting for communication, and the communication time hidden by
// backward. The bar also shows the three newest values that rank 0 logged with log_scalar() (metrics/metrics.h).
//
//   for (const auto& [x, y, ids] : progress(loader, ddp)) ...      // a lockstep::data::DataLoader
//   for (auto& batch : progress(*loader, ddp)) ...                 // a loader of torch::data
//
// On a terminal, and under `lockstep run`, the bar is redrawn in place; elsewhere a new line is printed every 2 s. The
// environment variable LOCKSTEP_PROGRESS overrides this choice with bar, lines or off. After the loop a summary shows
// the bar's numbers for the whole loop.
//
// The bar's loss and samples are those of all ranks (DistributedDataParallel::last_batch()). On the CPU the bar shows
// the loss of the last step; on a device, the loss of an earlier step that the host knows without waiting. The bar
// shows only steps within the loop, so a loop that only evaluates shows no loss and no communication.
//
// A loop over progress(loader, ddp) ends after all ranks have agreed to stop (comm/stop.h), and later loops have no
// iterations.
//
// Threads: a bar belongs to one thread. A bar never waits for another rank or for a device.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/stop.h"
#include "lockstep/ddp/global_batch.h"
#include "lockstep/trace/span.h"
#include "lockstep/trace/step_record.h"

namespace lockstep {

// ProgressStep holds the numbers that one training step adds to a progress bar.
struct ProgressStep {
  std::optional<double> loss = std::nullopt;
  std::int64_t samples = 0;                   // number of samples of all ranks
  const trace::StepRecord* record = nullptr;  // valid during the call
};

// TellsSteps is the concept of a class with those functions of DistributedDataParallel that a progress bar calls. The
// namespaces lockstep and lockstep::libtorch each have such a class, DistributedDataParallel.
template <typename T>
concept TellsSteps = requires(const T& ddp) {
  { ddp.group() } -> std::convertible_to<const std::shared_ptr<ProcessGroup>&>;
  { ddp.last_batch() } -> std::convertible_to<GlobalBatch>;
  { ddp.last_step() } -> std::convertible_to<const trace::StepRecord&>;
  static_cast<bool>(ddp.should_stop());
};

class LOCKSTEP_API Progress {
 public:
  // Makes a bar. `total` is the number of steps of the loop, or 0 if the number is unknown. `last_batch` and
  // `last_record` are the step numbers of ddp.last_batch() and ddp.last_step() before the loop; the bar does not show
  // these two steps. Throws InvalidArgument if the environment variable LOCKSTEP_PROGRESS has an unknown value.
  Progress(const ProcessGroup& group, std::int64_t total, std::int64_t last_batch = -1, std::int64_t last_record = -1);
  // Draws the final bar, unless finish() was called before or an exception is unwinding the stack.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Adds a step to the bar; the program calls step() after each step. Each step() reads the clock, and the bar is drawn
  // at most 10 times a second.
  void step(const ProgressStep& step);
  // Adds a step from ddp's state. If a step has several micro-batches, and step() is called after each micro-batch,
  // only the call after the last micro-batch adds the loss to the bar.
  template <TellsSteps Ddp>
  void step(const Ddp& ddp) {
    step(ddp.last_batch(), ddp.last_step());
  }
  // Writes `text` as a line above the bar on rank 0; does nothing on the other ranks.
  void note(std::string_view text);
  // Draws the final bar.
  void finish();

 private:
  void step(const GlobalBatch& batch, const trace::StepRecord& record);

  struct LOCKSTEP_LOCAL Impl;
  std::unique_ptr<Impl> impl_;
};

struct ProgressOptions {
  // The number of steps of the loop. The default of `total` is the loader's batches_in_pass(), if the loader has this
  // function. If the number of steps is unknown, the output shows no bar and no remaining time.
  std::optional<std::int64_t> total = std::nullopt;
  // If true, the loop only evaluates the model, and never calls backward(). In a loop that evaluates, a rank that was
  // asked to stop, or whose process got a signal, ends the loop before the next batch (StopView::this_rank). After an
  // evaluation that ended early, the ranks agree to stop when they call Metrics::result().
  bool evaluates = false;
};

// ProgressRange is the range of a range-for loop that runs over one epoch of a loader and draws a progress bar. The
// range calls after_step(bar) after each iteration of the loop. Before each iteration the range calls is_over(), and
// ends the loop if is_over() returns true.
template <typename Loader, typename AfterStep, typename IsOver>
class ProgressRange {
 public:
  class Iterator {
   public:
    explicit Iterator(ProgressRange* range) : range_(range) {
      if (range->is_over_()) return;
      const trace::Span span(trace::SpanKind::data);
      inner_.emplace(range->loader_.begin());
    }
    decltype(auto) operator*() { return **inner_; }
    Iterator& operator++() {
      range_->after_step_(*range_->bar_);
      is_over_ = range_->is_over_();
      if (is_over_) return *this;
      const trace::Span span(trace::SpanKind::data);
      ++*inner_;
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return is_over_ || !inner_ || *inner_ == range_->end_; }

   private:
    std::optional<decltype(std::declval<Loader&>().begin())> inner_;
    ProgressRange* range_;
    bool is_over_ = false;
  };

  ProgressRange(Loader& loader, std::unique_ptr<Progress> bar, AfterStep after_step, IsOver is_over)
      : loader_(loader),
        end_(loader.end()),
        after_step_(std::move(after_step)),
        is_over_(std::move(is_over)),
        bar_(std::move(bar)) {}

  Iterator begin() { return Iterator(this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  Loader& loader_;
  decltype(std::declval<Loader&>().end()) end_;
  AfterStep after_step_;
  IsOver is_over_;
  std::unique_ptr<Progress> bar_;
};

namespace detail {

template <typename Loader>
std::int64_t steps_of(const Loader& loader, const ProgressOptions& options) {
  if constexpr (requires { loader.batches_in_pass(); }) return options.total.value_or(loader.batches_in_pass());
  return options.total.value_or(0);
}

// Returns the number of samples that all ranks together have in one batch, or 0 if the number is not known.
template <typename Loader>
std::int64_t samples_of(const Loader& loader) {
  if constexpr (requires { loader.sampler().global_batch(); }) return loader.sampler().global_batch();
  return 0;
}

}  // namespace detail

// Returns a range over `loader`, for a range-for loop with a progress bar that shows ddp's loss and times. `loader` is
// any object with begin() and end(), and must outlive the loop.
template <typename Loader, TellsSteps Ddp>
auto progress(Loader& loader, const Ddp& ddp, const ProgressOptions& options = {}) {
  auto bar = std::make_unique<Progress>(*ddp.group(), detail::steps_of(loader, options), ddp.last_batch().step,
                                        ddp.last_step().step);
  return ProgressRange(
      loader, std::move(bar),
      [&ddp, evaluates = options.evaluates, samples = detail::samples_of(loader)](Progress& it) {
        // In an evaluation the bar reads no records from ddp, because the device may still deliver records of earlier
        // training steps.
        evaluates ? it.step({.samples = samples}) : it.step(ddp);
      },
      [&ddp, evaluates = options.evaluates] {
        return ddp.should_stop() || (evaluates && should_stop(*ddp.group(), StopView::this_rank));
      });
}
// Returns a range over `loader`, for a range-for loop with a progress bar but without a DistributedDataParallel. The
// bar shows the steps and the remaining time; if the loader has a sampler with global_batch(), the bar also shows
// samples. The range-for loop ends after all ranks of the group have agreed to stop.
template <typename Loader>
auto progress(Loader& loader, const std::shared_ptr<ProcessGroup>& group, const ProgressOptions& options = {}) {
  auto bar = std::make_unique<Progress>(*group, detail::steps_of(loader, options));
  return ProgressRange(
      loader, std::move(bar), [samples = detail::samples_of(loader)](Progress& it) { it.step({.samples = samples}); },
      [group, evaluates = options.evaluates] {
        return should_stop(*group) || (evaluates && should_stop(*group, StopView::this_rank));
      });
}

}  // namespace lockstep
