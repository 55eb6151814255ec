// SPDX-License-Identifier: Apache-2.0
// Use of this host's GPUs by the processes of a run. lockstep-probe is asked, so that this program does not load a
// driver's library.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "launcher/live/live_report.h"

namespace lockstep::launcher {

struct GpuProcess {
  int pid = 0;
  double use = -1;           // utilization of its GPU, by all processes on it: 0 to 1; below 0: not known
  double memory_bytes = -1;  // memory of this process; below 0: not known
};

// Returns nullopt if there is no GPU, or the probe has not answered within 5 s; an empty list if no process uses one.
// Main thread.
std::optional<std::vector<GpuProcess>> ask_gpu_use();
// Reads the probe's answer. Pure.
std::optional<std::vector<GpuProcess>> read_gpu_use(std::string_view answer);
// Adds the GPU use of the report's ranks on `host`, matched by process id; a container with its own process ids
// therefore gets none. Pure.
void add_gpu_use(LiveReport& report, std::string_view host, const std::vector<GpuProcess>& processes);

}  // namespace lockstep::launcher
