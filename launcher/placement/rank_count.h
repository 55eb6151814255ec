// SPDX-License-Identifier: Apache-2.0
// The number of a job's ranks on this host.
#pragma once

#include <optional>
#include <string>

#include "launcher/flags/run_options.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// GPUs that a rank would see, found without a CUDA library: the driver's files, restricted by CUDA_VISIBLE_DEVICES.
struct Gpus {
  int count = 0;
  std::string reason;  // reason why there are no GPUs; else empty
};
// `proc_folder` is /proc/driver/nvidia/gpus, `dev_folder` is /dev.
Gpus find_gpus(const std::string& proc_folder, const std::string& dev_folder, const Environment& environment);

// Returns how many of `present` GPUs a value of CUDA_VISIBLE_DEVICES leaves visible. As in CUDA, an entry that does not
// name a GPU hides itself and all that follow.
int visible_gpus(int present, const std::optional<std::string>& cuda_visible_devices);

struct RankCount {
  int ranks = 0;
  std::string reason;  // "1 per core, 4 allowed"; empty if the user gave the number
};
// Throws InvalidArgument if gpu was asked for and there is no GPU, or if two flags give different numbers.
RankCount choose_ranks(const RunOptions& options, const Gpus& gpus, int cores);

struct CoreDemand {
  int ranks = 1;                    // on this host
  std::optional<int> threads = {};  // threads of each rank, if OMP_NUM_THREADS is set
  int cores = 1;
  bool uses_gpus = false;  // the ranks' threads start kernels and do not compute
  bool is_multi_host = false;
};
// Returns a text that says that the ranks have more threads than there are cores, and the remedy; empty if they have
// not. On GPUs only ranks count, not their threads. Pure.
std::string describe_crowd(const CoreDemand& demand);

}  // namespace lockstep::launcher
