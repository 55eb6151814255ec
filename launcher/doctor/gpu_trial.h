// SPDX-License-Identifier: Apache-2.0
// `lockstep doctor --gpus`: a job with a rank on each GPU, over NCCL as NCCL chooses its transports, and what its ranks
// have measured.
#pragma once

#include <nlohmann/json.hpp>

#include "launcher/doctor/finding.h"
#include "launcher/flags/command_line.h"
#include "launcher/process/helper_program.h"

namespace lockstep::launcher::doctor {

// Starts `lockstep run` with ranks of `lockstep-probe gpu-rank` (launcher/probe/gpu_rank.h) on this host's GPUs, or on
// all GPUs of the hosts that `options` names. Takes DoctorOptions::probe_timeout twice, and a few seconds. Returns
// read_gpu_job()'s object. Main thread; throws ExecError, SystemError.
nlohmann::json try_gpus(const DoctorOptions& options);

// Reads what a job's ranks have written. Returns {"said": [a rank's object], "problem": how the job ended, if not as it
// is meant to, else ""}. Pure.
nlohmann::json read_gpu_job(const HelperResult& result);

// Returns the findings of the job. Bandwidths are nccl-tests' (its doc/PERFORMANCE.md): algbw is bytes over time,
// busbw that times 2(n-1)/n. Pure.
Findings gpu_trial_findings(const nlohmann::json& trial);

}  // namespace lockstep::launcher::doctor
