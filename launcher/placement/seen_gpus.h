// SPDX-License-Identifier: Apache-2.0
// The GPUs of this host, as a driver sees them. lockstep-probe asks the driver, so that this program neither links nor
// initialises it.
#pragma once

#include <string>
#include <vector>

#include "launcher/placement/gpu_choice.h"
#include "launcher/process/helper_program.h"

namespace lockstep::launcher {

struct SeenGpus {
  std::vector<SeenGpu> gpus;
  std::string reason;  // reason why there are no GPUs, as a sentence; else empty
};

// Runs the probe that is installed beside this program. Main thread. An error of the probe is returned as the reason,
// not thrown.
SeenGpus ask_gpus();

// Reads the probe's output. Pure.
SeenGpus read_gpus(const std::string& path, const HelperResult& result);

// Returns the path of lockstep-probe.
std::string probe_path();

}  // namespace lockstep::launcher
