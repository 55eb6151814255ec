// SPDX-License-Identifier: Apache-2.0
// GPUs: what the driver's files show, and what a rank would compute on.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "launcher/doctor/finding.h"
#include "launcher/placement/rank_count.h"

namespace lockstep::launcher::doctor {

// `version_file` is /proc/driver/nvidia/version. `probe` is what lockstep-probe answered, or null: then nobody has
// asked a driver.
Findings gpu_findings(const Gpus& gpus, const std::string& version_file, const nlohmann::json& probe);

}  // namespace lockstep::launcher::doctor
