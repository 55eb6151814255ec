// SPDX-License-Identifier: Apache-2.0
// What --help says beside the flags.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::launcher {

struct HelpText {
  std::string_view command;  // its last word; "lockstep": that without a command
  std::string_view form;     // the words behind `lockstep`
  std::string_view text;     // behind the flags
};
// "run" stands for `lockstep run --help all`.
const HelpText& help_of(std::string_view command);

// All of `lockstep run --help`, which fits a screen, flags included.
std::string short_run_help();

// Behind the texts of ps, top, inspect, trace, logs and stop.
inline constexpr std::string_view kExitCodesOfRuns = R"(
Exit codes:
  0        done
  1        there is no such run, or several; it does not answer; or a file
           can't be written
  2        this command line is wrong)";

}  // namespace lockstep::launcher
