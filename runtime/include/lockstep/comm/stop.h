// SPDX-License-Identifier: Apache-2.0
// Defines functions that stop training on all ranks after the same step, if a rank gets a signal or the program
// calls request_stop().
//
//   auto group = lockstep::init_process_group();
//   lockstep::stop_on_signals(*group);                        // SIGTERM, SIGINT, SIGUSR1 of any rank
//   ...
//   for (const auto& batch : progress(loader, ddp)) {         // ends by itself, as does a loader that ddp watches
//     ...
//     if (loss < 0.01) lockstep::request_stop(*group, "the loss is low enough");
//   }
//   if (ddp.should_stop()) save(...);                         // the same on every rank
//   return ddp.exit_code();
//
// One rank's request to stop travels to all ranks with the gradients of the rank's next synchronised step
// (ddp/step_note.h); on a device the request travels with the gradients of the step two steps later. At the end of the
// step that carries the request, all ranks have agreed to stop: from then on should_stop() returns the reason on every
// rank. The request itself ends no loop. In loops without backward(), Metrics::result() and should_stop(*group,
// StopView::all_ranks) carry stop requests to the other ranks. A group stays stopped, so a later phase of training
// needs a second group.
//
// Threads: any thread may call request_stop() and should_stop(). Only the thread that uses the group may use
//   StopView::all_ranks and the other functions.
// Failure: the stop functions throw the group's errors, and StoreError.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

struct StopOptions {
  std::vector<int> on_signals = {};  // the signals; empty means SIGTERM, SIGINT and SIGUSR1
  // The time, above 0, within which a training step must end after the first signal. nullopt means the value of
  // LOCKSTEP_STOP_TIMEOUT in seconds or, if LOCKSTEP_STOP_TIMEOUT is unset, 25 s. The default is 5 s below the time
  // after which Kubernetes kills a process.
  std::optional<std::chrono::nanoseconds> timeout = {};
};

// During the group's lifetime, turns each signal of `options.on_signals` that this process gets into a request to stop.
// In programs that never call stop_on_signals(), signals keep their usual effect.
//
// If the process gets the same signal a second time, the signal ends the process at once. A signal that is repeated
// within 200 ms counts as one signal, because timeout(1) sends its signal twice. If no training step ends within the
// timeout after the first signal, the process writes its place in the training to stderr, and the signal ends the
// process. The first signal also calls the handlers that the program installed before stop_on_signals(); a handler that
// the program installs later replaces lockstep's handler. A signal that the process ignores stays ignored. Only the
// first call of stop_on_signals() on each rank of a group takes effect; later calls only change the timeout. Throws
// InvalidArgument if a signal can't be handled or an option is out of its range.
LOCKSTEP_API void stop_on_signals(ProcessGroup& group, const StopOptions& options = {});

// Asks all ranks of the group to stop. Any rank may call request_stop(), once or several times; should_stop() returns
// the first reason that any rank gave. If request_stop() made the ranks stop, exit_code() returns 0, because the
// program decided to end.
LOCKSTEP_API void request_stop(ProcessGroup& group, std::string_view reason);

// StopView names the ranks whose requests should_stop() looks at.
//
// An evaluation has no training steps in which ranks could agree to stop. Each rank may leave an evaluation on its own,
// with StopView::this_rank, or with progress() and ProgressOptions::evaluates. After leaving the evaluation, all ranks
// call Metrics::result() and so agree to stop; the result covers the rows that the ranks have evaluated.
enum class StopView : std::uint8_t {
  agreed,     // all ranks, once they have agreed to stop: the same on every rank between the same two steps
  this_rank,  // only this rank, whose program has asked or whose process got a signal: other ranks may not know yet
  // The requests of all ranks: should_stop() is a collective call, in which all ranks agree to stop if any rank got a
  // request before the rank made the call. Loops without a DistributedDataParallel use all_ranks: if (step % 100 == 0
  // && should_stop(*group, StopView::all_ranks)) break;
  all_ranks,
};

// Returns the reason to stop, which is "rank 2 got SIGTERM" or the text given to request_stop(). Returns nullopt if
// training continues, so a loop can use the result as its condition: if (should_stop(*group)) break;
LOCKSTEP_API std::optional<std::string> should_stop(const ProcessGroup& group);
LOCKSTEP_API std::optional<std::string> should_stop(ProcessGroup& group, StopView view);

// Returns the exit code that main() should return: 0 if the program ends as planned or after request_stop(). If the
// ranks have stopped because of a signal, returns the value of LOCKSTEP_REQUEUE_EXIT_CODE or, if
// LOCKSTEP_REQUEUE_EXIT_CODE is unset, 75 (EX_TEMPFAIL). The exit code for a signal asks the scheduler to start the job
// again; exit_code() returns this code even if the ranks stopped after the last step of the training. Throws
// InvalidArgument if LOCKSTEP_REQUEUE_EXIT_CODE is not a number from 1 to 125.
LOCKSTEP_API int exit_code(const ProcessGroup& group);

}  // namespace lockstep
