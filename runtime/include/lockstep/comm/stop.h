// SPDX-License-Identifier: Apache-2.0
// Stops training after the same step on all ranks, for a signal or because the program asks.
//
//   auto group = lockstep::init_process_group();
//   lockstep::stop_on_signals(*group);                        // SIGTERM, SIGINT, SIGUSR1 of any rank
//   ...
//   for (const auto& batch : progress(loader, ddp)) {         // ends by itself, and so does a loader that ddp watches
//     ...
//     if (loss < 0.01) lockstep::request_stop(*group, "the loss is low enough");
//   }
//   if (ddp.should_stop()) save(...);                         // the same on every rank
//   return ddp.exit_code();
//
// A request comes from one rank, and ends no loop by itself. It rides with the gradients of that rank's next
// synchronised step (ddp/step_note.h), on a device two steps later, and at the end of that step all ranks have agreed:
// from then on should_stop() is true on each of them, for as long as the group stands. Metrics::result() and
// agreed_stop() carry it as well, for loops without a backward. A second phase of training that must stop separately
// needs a group of its own.
//
// An evaluation has no step. There each rank may leave by itself, with stop_requested(), or progress() with
// ProgressOptions::evaluates; they agree in Metrics::result(), which all ranks call behind it, over the rows that they
// have counted.
//
// Threads: request_stop(), stop_requested(), should_stop() and stop_reason() from any; the others those of the group.
// Failure: the group's errors, and StoreError.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

struct StopOptions {
  std::vector<int> on_signals = {};  // empty: SIGTERM, SIGINT and SIGUSR1
  // The time from the first signal to the end of a step, above 0. nullopt: LOCKSTEP_STOP_TIMEOUT (seconds), else 25 s,
  // which is 5 s less than Kubernetes gives a process before it kills it.
  std::optional<std::chrono::nanoseconds> timeout = {};
};

// Makes each of the signals, sent to this process, a request to stop, for as long as the group stands. Without this
// call the signals have their usual effect.
//
// A second signal of the same kind ends the process at once, by that signal; one within 200 ms is the first one sent
// twice, as by timeout(1). If no step of the training ends within the timeout, the process writes its place to stderr
// and ends by the signal. The program's earlier handlers are called too, with the first signal; a handler that is
// installed later replaces this one. A signal that is ignored stays ignored. Once per group and rank: later calls
// change the timeout. InvalidArgument for a signal that can't be handled, and for values out of their range.
LOCKSTEP_API void stop_on_signals(ProcessGroup& group, const StopOptions& options = {});

// Asks all ranks of the group to stop: from any rank, once or often; the first reason stays. The program's own end:
// exit_code() is 0.
LOCKSTEP_API void request_stop(ProcessGroup& group, std::string_view reason);

// Whether this rank has asked, or its process got a signal. Other ranks need not know yet.
LOCKSTEP_API bool stop_requested(const ProcessGroup& group);
// Whether all ranks have agreed to stop: the same on every rank between the same two steps.
LOCKSTEP_API bool should_stop(const ProcessGroup& group);
// "rank 2 got SIGTERM", or the text given to request_stop(): the same on every rank. nullopt before the ranks have
// agreed.
LOCKSTEP_API std::optional<std::string> stop_reason(const ProcessGroup& group);

// Collective, for loops without a DistributedDataParallel: the reason, on every rank in the same call, once a rank had
// asked before its own call; nothing before.
//
//   if (step % 100 == 0 && lockstep::agreed_stop(*group)) break;
LOCKSTEP_API std::optional<std::string> agreed_stop(ProcessGroup& group);

// The exit code for main() to return: 0 for a program that has come to its end, also by request_stop(). If the ranks
// have stopped for a signal, LOCKSTEP_REQUEUE_EXIT_CODE, else 75 (EX_TEMPFAIL), which means "start it again"; also if
// that step was the last one to do. InvalidArgument if the variable is not a code from 1 to 125.
LOCKSTEP_API int exit_code(const ProcessGroup& group);

}  // namespace lockstep
