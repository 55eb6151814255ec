// SPDX-License-Identifier: Apache-2.0
// The findings of `lockstep-probe` about backends and plug-ins; its devices are for gpu_findings.h. It may be missing,
// hang, crash or talk nonsense; each is a finding.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "launcher/doctor/finding.h"
#include "launcher/process/helper_program.h"

namespace lockstep::launcher::doctor {

struct ProbeAnswer {
  nlohmann::json json;  // null if there was none
  Findings findings;
};

// Runs the program at `path` with a limit of `limit`; where there is a GPU once more, for its kernels. Main thread.
ProbeAnswer ask_probe(const std::string& path, std::chrono::milliseconds limit);

// Reads its output. Pure.
ProbeAnswer read_probe(const std::string& path, const HelperResult& result, std::chrono::milliseconds limit);
// What is made of the output of `lockstep-probe tensors`, as it has it; a hang, a crash or nonsense is its reason.
// Pure.
nlohmann::json read_tensors(const HelperResult& result, std::chrono::milliseconds limit);

}  // namespace lockstep::launcher::doctor
