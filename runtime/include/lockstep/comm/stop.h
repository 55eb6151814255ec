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
// A request comes from one rank, and ends no loop by itself. It travels with the gradients of that rank's next
// synchronised step (ddp/step_note.h), on a device two steps later. At the end of that step all ranks have agreed:
// should_stop() then gives the reason on each of them, for the group's lifetime. Metrics::result() and
// should_stop(*group, StopView::all_ranks) carry a request too, for loops without a backward. A second phase of
// training that must stop separately needs a group of its own.
//
// An evaluation has no step. Each rank may leave it by itself, with StopView::this_rank, or progress() with
// ProgressOptions::evaluates. The ranks then agree in Metrics::result(), which all ranks call afterwards, over the rows
// that they have counted.
//
// Threads: request_stop() and should_stop() from any thread; StopView::all_ranks and the other functions from the
//   group's thread.
// Failure: the group's errors, and StoreError.
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
  std::vector<int> on_signals = {};  // the signals; empty: SIGTERM, SIGINT and SIGUSR1
  // The time from the first signal to the end of a step, above 0. nullopt: LOCKSTEP_STOP_TIMEOUT (seconds), or else 25
  // s, which is 5 s less than Kubernetes gives a process before it kills it.
  std::optional<std::chrono::nanoseconds> timeout = {};
};

// Makes each of these signals, sent to this process, a request to stop, for the group's lifetime. Without this call the
// signals have their usual effect.
//
// A second signal of the same kind ends the process at once, by that signal; one within 200 ms counts as the first one
// sent twice, as timeout(1) does. If no step of the training ends within the timeout, the process writes its place to
// stderr and ends by the signal. The first signal also calls the program's earlier handlers; a handler that is
// installed later replaces this one. A signal that is ignored stays ignored. One call per group and rank counts: later
// calls only change the timeout. InvalidArgument for a signal that can't be handled, and for values out of their range.
LOCKSTEP_API void stop_on_signals(ProcessGroup& group, const StopOptions& options = {});

// Asks all ranks of the group to stop: from any rank, once or often; the first reason stays. It is the program's own
// end, so exit_code() is 0.
LOCKSTEP_API void request_stop(ProcessGroup& group, std::string_view reason);

// The ranks whose requests should_stop() looks at.
enum class StopView : std::uint8_t {
  agreed,     // all ranks, which have agreed to stop: the same on every rank between the same two steps
  this_rank,  // this rank, which has asked, or whose process got a signal: other ranks may not know yet
  // All ranks, which agree in this collective call if one has asked before its own call. For loops without a
  // DistributedDataParallel: if (step % 100 == 0 && should_stop(*group, StopView::all_ranks)) break;
  all_ranks,
};

// Returns the reason to stop: "rank 2 got SIGTERM", or the text given to request_stop(). nullopt: continue. The reason
// works as a condition: if (should_stop(*group)) break;
LOCKSTEP_API std::optional<std::string> should_stop(const ProcessGroup& group);
LOCKSTEP_API std::optional<std::string> should_stop(ProcessGroup& group, StopView view);

// The exit code for main() to return. 0 for a program that has come to its end, also by request_stop(). If the ranks
// have stopped because of a signal, LOCKSTEP_REQUEUE_EXIT_CODE, or else 75 (EX_TEMPFAIL), which means "start it again";
// also if that step was the last one of the training. InvalidArgument if the variable is not a code from 1 to 125.
LOCKSTEP_API int exit_code(const ProcessGroup& group);

}  // namespace lockstep
