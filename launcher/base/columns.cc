// SPDX-License-Identifier: Apache-2.0
#include "launcher/base/columns.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::launcher {

std::vector<std::string> in_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.empty() ? 0 : rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i + 1 < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    lines.push_back(line + row.back());
  }
  return lines;
}

}  // namespace lockstep::launcher
