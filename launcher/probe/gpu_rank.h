// SPDX-License-Identifier: Apache-2.0
// A rank of the job that `lockstep doctor --gpus` starts: one GPU among those of the job, over NCCL.
#pragma once

#include <chrono>

namespace lockstep::probe {

// Joins the job's group, and prints a JSON object with its "rank" on a line of stdout for each result:
//   {"what": "rank", "host", "gpu", "uuid"}
//   {"what": "sums", "bytes", "seconds", "wrong"}: an all-reduce in place by all ranks, whose result was compared, and
//     the device's time of one, as the mean of several; "wrong" is empty if all elements were right
//   {"what": "steps", "ranks", "steps", "seconds", "hidden", "waited", "wrong"}: a Reducer's steps in a group of so
//     many ranks, each with the time of its communication before and after the last gradient, by the device
//   {"what": "death", "named", "seconds", "text"}: of each survivor of the last rank, which ends by SIGKILL: the rank
//     that the error names, and the time since its last collective, an upper bound of the time since the death
//   {"what": "failed", "error"}: this rank can't continue
//
// Returns the exit code. A collective may take a sixth of `limit`; after twice the limit SIGALRM ends the process,
// whatever a driver does. SIGTERM is ignored: a survivor says what it has seen.
int gpu_rank(std::chrono::seconds limit);

}  // namespace lockstep::probe
