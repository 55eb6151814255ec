// SPDX-License-Identifier: Apache-2.0
// The end of training on which the ranks of a group have agreed (lockstep/comm/stop.h). Each group has one.
//
// A rank's word, 1 or 0, goes into a collective that the ranks make anyway; what comes out of it, the same on every
// rank, is all that latches. The reason waits in the group's store: whoever asks writes it there before its word is
// sent, and who hears that somebody asked reads it.
//
// Threads: request(), is_requested() and the readers any; the others the group's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/comm/stop.h"
#include "runtime/job/stop_signals.h"

namespace lockstep {

class ProcessGroup;

class CoordinatedStop {
 public:
  void listen(const ProcessGroup& group, const StopOptions& options);
  void request(ProcessGroup& group, std::string_view reason);
  bool is_requested() const noexcept;

  // This rank's word for the collective that it is about to start: 1 if it asks, else 0.
  std::int64_t word(ProcessGroup& group);
  // `words`: all ranks' words, combined, in a collective that is over; not 0: some rank asks. Once latched, nothing
  // changes.
  void agree(ProcessGroup& group, std::int64_t words);

  // Steps that earlier runs have done: messages on a stop count them in, as snapshots do. The step of the report is
  // that count, too.
  void set_steps_before(std::int64_t steps) noexcept;
  // Those before included; 0: there was none. Any thread.
  std::int64_t steps_done() const noexcept { return std::max<std::int64_t>(0, steps_done_.load()); }
  // `step`: the number within this run, from 0. The job's launcher knows of it when the call returns, whatever becomes
  // of the ranks then.
  void step_begun(std::int64_t step) noexcept;
  void step_ended(std::int64_t step) noexcept;

  bool is_latched() const noexcept { return is_latched_.load(std::memory_order_acquire); }
  // Nothing before it is latched.
  std::optional<std::string> reason() const;
  // Latched for a signal.
  bool is_by_signal() const noexcept { return is_latched() && by_signal_; }

 private:
  std::unique_ptr<StopSignals> signals_;  // while this rank listens to them
  std::atomic<bool> listens_{false};
  std::atomic<bool> is_told_{false};  // the reason is in the store
  std::atomic<bool> is_latched_{false};
  std::atomic<std::int64_t> steps_before_{0};
  std::atomic<std::int64_t> steps_done_{-1};  // those before included; -1: there was none
  // Written before it is latched.
  std::string reason_;
  bool by_signal_ = false;
};

}  // namespace lockstep
