// SPDX-License-Identifier: Apache-2.0
// The GPUs of this host, as a driver sees them: asked of lockstep-probe, so that this program links and wakes none.
#pragma once

#include <string>
#include <vector>

#include "launcher/placement/gpu_choice.h"
#include "launcher/process/helper_program.h"

namespace lockstep::launcher {

struct SeenGpus {
  std::vector<SeenGpu> gpus;
  std::string reason;  // why there are none, as a sentence; empty if there are
};

// Runs the probe beside this program. Main thread. Never throws for what the probe does: that is a reason.
SeenGpus ask_gpus();

// Reads the probe's output. Pure.
SeenGpus read_gpus(const std::string& path, const HelperResult& result);

// The path of lockstep-probe.
std::string probe_path();

}  // namespace lockstep::launcher
