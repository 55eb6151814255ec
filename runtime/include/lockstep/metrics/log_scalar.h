// SPDX-License-Identifier: Apache-2.0
// A number by name and step, for the views of a run: progress bar, `lockstep top`, Prometheus, and the report with its
// TensorBoard events (docs/OBSERVE.md).
//
//   lockstep::log_scalar(*group, "val/loss", results.mean("loss"));   // any rank, or several
//
// The launcher shows the mean over the ranks that logged a name in a step. A rank that logs nothing changes nothing.
// The library logs "loss", of the global batch, "lr" (optim::Optimizer::step) and "grad_norm" (optim::clip_grad_norm).
//
// Not collective: nobody waits for another rank, a device or the launcher. Costs a lock and some words of memory.
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// `step` is by default the number of steps that the group's training has done: after the third backward it is 3. Those
// of earlier runs are included after Snapshots::restore(). DistributedDataParallel::set_steps() doesn't change the
// count, since a group may have several networks: a program that restores by itself gives ddp.steps(). A value that is
// logged again for a step replaces the one before; a job that starts again replaces those of the steps that it runs
// again. NaN and infinity are values like others.
//
// `name`: 1 to 63 bytes of UTF-8 without control characters, "/" groups names in TensorBoard. A rank keeps 64 names;
// values of others are dropped with a warning, the 1st, 2nd, 4th, 8th ... time. The report has 256 to 512 points for
// each start of a name that has been logged often.
//
// InvalidArgument for another name, and for a step below 0 or above 2^53.
LOCKSTEP_API void log_scalar(const ProcessGroup& group, std::string_view name, double value,
                             std::optional<std::int64_t> step = std::nullopt);

}  // namespace lockstep
