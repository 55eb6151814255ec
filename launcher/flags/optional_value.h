// SPDX-License-Identifier: Apache-2.0
// Flags whose value is optional and that stand in front of PROGRAM, which CLI11 would take for the value.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace lockstep::launcher {

// `arguments` are a subcommand's name and the words behind it. Inserts `value` behind each of `names` that is not
// followed by a number or an empty word, among the flags and their values in front of the first other word.
void complete_optional_value(const CLI::App& app, const std::vector<std::string>& names, const std::string& value,
                             std::vector<std::string>& arguments);

}  // namespace lockstep::launcher
