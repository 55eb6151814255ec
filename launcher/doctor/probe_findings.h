// SPDX-License-Identifier: Apache-2.0
// The findings of `lockstep-probe` about backends and plug-ins; gpu_findings.h has those about devices. The probe may
// be missing, hang, crash or print nonsense; each of these is a finding.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "launcher/doctor/finding.h"
#include "launcher/process/helper_program.h"

namespace lockstep::launcher::doctor {

struct ProbeAnswer {
  nlohmann::json json;  // the answer; null if there was none
  Findings findings;
};

// Runs the program at `path` with a limit of `limit`; if there is a GPU, runs it a second time for the kernels. Main
// thread.
ProbeAnswer ask_probe(const std::string& path, std::chrono::milliseconds limit);

// Reads the probe's output. Pure.
ProbeAnswer read_probe(const std::string& path, const HelperResult& result, std::chrono::milliseconds limit);
// Returns the output of `lockstep-probe tensors`; after a hang, a crash or nonsense, that as the reason in the same
// form. Pure.
nlohmann::json read_tensors(const HelperResult& result, std::chrono::milliseconds limit);

}  // namespace lockstep::launcher::doctor
