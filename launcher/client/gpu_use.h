// SPDX-License-Identifier: Apache-2.0
// How much of this host's GPUs the processes of a run use: asked of lockstep-probe, so that this program loads no
// driver's library.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "launcher/live/live_report.h"

namespace lockstep::launcher {

struct GpuProcess {
  int pid = 0;
  double use = -1;           // of its GPU, by all of its processes: 0 to 1; below 0: not known
  double memory_bytes = -1;  // of this one; below 0: not known
};

// Nothing where there is no GPU, or the probe has no answer within 5 s; none if no process uses one. Main thread.
std::optional<std::vector<GpuProcess>> ask_gpu_use();
// Reads the probe's answer. Pure.
std::optional<std::vector<GpuProcess>> read_gpu_use(std::string_view answer);
// Fills in what the report's ranks on `host` use; by process, so that a container which numbers its own sees none.
// Pure.
void add_gpu_use(LiveReport& report, std::string_view host, const std::vector<GpuProcess>& processes);

}  // namespace lockstep::launcher
