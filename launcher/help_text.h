// SPDX-License-Identifier: Apache-2.0
// What --help says beside the flags.
#pragma once

#include <string>

namespace lockstep::launcher {

std::string general_help();
// All of `lockstep run --help`, which fits a screen, flags included; run_help() goes with --help all.
std::string short_run_help();
std::string run_help();
std::string serve_help();
std::string doctor_help();
std::string snapshots_help();
std::string report_help();
std::string bisect_step_help();
std::string ps_help();
std::string top_help();
std::string inspect_help();
std::string trace_help();
std::string logs_help();
std::string stop_help();

}  // namespace lockstep::launcher
