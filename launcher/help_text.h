// SPDX-License-Identifier: Apache-2.0
// What --help says beside the flags.
#pragma once

#include <string>

namespace lockstep::launcher {

std::string general_help();
std::string run_help();
std::string serve_help();
std::string doctor_help();
std::string snapshots_help();
std::string report_help();
std::string bisect_step_help();
std::string runs_help();

}  // namespace lockstep::launcher
