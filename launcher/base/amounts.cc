// SPDX-License-Identifier: Apache-2.0
#include "launcher/base/amounts.h"

#include <fmt/format.h>

#include <array>

namespace lockstep::launcher {

std::string count_of(std::int64_t count, std::string_view noun, std::string_view plural_ending) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : plural_ending);
}

std::string readable_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  auto value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace lockstep::launcher
