// SPDX-License-Identifier: Apache-2.0
// Stops training after the same step on all ranks, because of a signal or because the program asks.
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
// A request comes from one rank, and ends no loop by itself. The request travels with the gradients of that rank's next
// synchronised step (ddp/step_note.h), on a device two steps later. At the end of the step that carries the request all
// ranks have agreed: should_stop() then gives the reason on each rank, for the group's lifetime. Metrics::result() and
// should_stop(*group, StopView::all_ranks) carry a request too, for loops without a backward. A second phase of
// training that must stop separately needs a second group.
//
// Threads: any thread may call request_stop() and should_stop(). Only the group's thread may use StopView::all_ranks
//   and the other functions.
// Failure: calls throw the group's errors, and StoreError.
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
  // The time from the first signal to the end of a step, above 0. nullopt means LOCKSTEP_STOP_TIMEOUT (seconds), or
  // else 25 s, which is 5 s less than Kubernetes gives a process before killing the process.
  std::optional<std::chrono::nanoseconds> timeout = {};
};

// Turns each signal of `options.on_signals` that this process gets into a request to stop, for the group's lifetime.
// Without this call the signals have their usual effect.
//
// A second signal of the same kind ends the process at once, by that signal; but a repetition within 200 ms counts as
// the first signal sent twice, as timeout(1) does. If no step of the training ends within the timeout, the process
// writes its place to stderr and ends by the signal. The first signal also calls the program's earlier handlers; a
// handler that is installed later replaces lockstep's handler. A signal that is ignored stays ignored. Only the first
// call on each rank of a group takes effect; later calls only change the timeout. Throws InvalidArgument for a signal
// that can't be handled, and for values out of their range.
LOCKSTEP_API void stop_on_signals(ProcessGroup& group, const StopOptions& options = {});

// Asks all ranks of the group to stop. Any rank may call request_stop(), once or often; the first reason stays. The
// request is the program's own end, so exit_code() is 0.
LOCKSTEP_API void request_stop(ProcessGroup& group, std::string_view reason);

// StopView names the ranks whose requests should_stop() looks at.
//
// An evaluation has no step. Each rank may leave an evaluation by itself, with StopView::this_rank, or progress() with
// ProgressOptions::evaluates. The ranks then agree in Metrics::result(), which all ranks call afterwards, over the rows
// that they have counted.
enum class StopView : std::uint8_t {
  agreed,     // all ranks, once they have agreed to stop: the same on every rank between the same two steps
  this_rank,  // only this rank, whose program has asked or whose process got a signal: other ranks may not know yet
  // All ranks, which agree in this collective call: they stop if some rank has asked before its own call. For loops
  // without a DistributedDataParallel: if (step % 100 == 0 && should_stop(*group, StopView::all_ranks)) break;
  all_ranks,
};

// Returns the reason to stop: "rank 2 got SIGTERM", or the text given to request_stop(). nullopt means that the
// training continues. The reason works as a condition: if (should_stop(*group)) break;
LOCKSTEP_API std::optional<std::string> should_stop(const ProcessGroup& group);
LOCKSTEP_API std::optional<std::string> should_stop(ProcessGroup& group, StopView view);

// Returns the exit code for main() to return: 0 for a program that has come to its end, also by request_stop(). If the
// ranks have stopped because of a signal, returns LOCKSTEP_REQUEUE_EXIT_CODE, or else 75 (EX_TEMPFAIL), which means
// "start the job again", even if the step of the stop was the last step of the training. Throws InvalidArgument if the
// variable is not a code from 1 to 125.
LOCKSTEP_API int exit_code(const ProcessGroup& group);

}  // namespace lockstep
