// SPDX-License-Identifier: Apache-2.0
// The texts of --help beside the flags.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::launcher {

struct HelpText {
  std::string_view command;  // the command's last word; "lockstep": the program without a command
  std::string_view about;    // one line of lockstep --help; empty: the command is not listed
  std::string_view form;     // the words behind `lockstep`
  std::string_view text;     // the text behind the flags
};
// Returns the texts of `command`. "run" stands for `lockstep run --help all`.
const HelpText& help_of(std::string_view command);

// Returns the whole of `lockstep run --help`, which fits a screen, with `flags` in it.
std::string short_run_help(std::string_view flags);

// The end of the texts of ps, top, inspect, trace, logs and stop.
inline constexpr std::string_view kExitCodesOfRuns = R"(
Exit codes:
  0        done
  1        there is no such run, or several; it does not answer; or a file
           can't be written
  2        this command line is wrong)";

}  // namespace lockstep::launcher
