// SPDX-License-Identifier: Apache-2.0
// A flag that may come with a value or without, in front of a PROGRAM: CLI11 would take that for the value.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace lockstep::launcher {

// `arguments` are a subcommand's name and what follows it. Where one of `names` comes there, before the first word that
// is no flag of `app` nor a flag's value, and no number follows, `value` is put behind it.
void complete_optional_value(const CLI::App& app, const std::vector<std::string>& names, const std::string& value,
                             std::vector<std::string>& arguments);

}  // namespace lockstep::launcher
