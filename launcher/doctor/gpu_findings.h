// SPDX-License-Identifier: Apache-2.0
// Findings about GPUs: those in the driver's files, and the devices on which a rank would compute.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "launcher/doctor/finding.h"
#include "launcher/placement/rank_count.h"

namespace lockstep::launcher::doctor {

// `version_file` is /proc/driver/nvidia/version. `probe` is the answer of lockstep-probe, or null if a driver was not
// asked.
Findings gpu_findings(const Gpus& gpus, const std::string& version_file, const nlohmann::json& probe);

}  // namespace lockstep::launcher::doctor
