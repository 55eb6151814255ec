// SPDX-License-Identifier: Apache-2.0
// What `lockstep-probe` says of backends and plug-ins; its devices are for gpu_findings.h. It may be missing, hang,
// crash or talk nonsense; each is a finding.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "launcher/doctor/finding.h"
#include "launcher/doctor/helper_program.h"

namespace lockstep::launcher::doctor {

struct ProbeAnswer {
  nlohmann::json json;  // null if there was none
  Findings findings;
};

// Runs the program at `path` with a limit of `limit`. Main thread.
ProbeAnswer ask_probe(const std::string& path, std::chrono::milliseconds limit);

// What is made of its output. Pure.
ProbeAnswer read_probe(const std::string& path, const HelperResult& result, std::chrono::milliseconds limit);

}  // namespace lockstep::launcher::doctor
