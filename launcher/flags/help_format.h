// SPDX-License-Identifier: Apache-2.0
// The layout of commands and flags in --help: 80 columns, and one spelling of each flag.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::launcher {

inline constexpr std::size_t kHelpColumns = 80;

std::shared_ptr<CLI::FormatterBase> help_formatter();
// Returns `text` in lines of at most `columns`, broken at blanks.
std::string wrapped(std::string_view text, std::size_t columns);

}  // namespace lockstep::launcher
