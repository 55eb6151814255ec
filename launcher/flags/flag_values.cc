// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/flag_values.h"

#include <limits>

#include "lockstep/base/environment.h"

namespace lockstep::launcher {

std::optional<std::chrono::milliseconds> parse_seconds(const std::string& text) {
  try {
    std::size_t used = 0;
    const double value = std::stod(text, &used);
    if (used == text.size() && value >= 0 && value <= 86400) {
      return std::chrono::milliseconds(static_cast<std::int64_t>(value * 1000));
    }
  } catch (const std::exception&) {  // not a number
  }
  return std::nullopt;
}

std::optional<std::size_t> parse_bytes(std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  std::size_t scale = 1;
  if (!text.empty()) {
    if (const auto unit = kUnits.find(text.back()); unit != std::string_view::npos) {
      scale = std::size_t{1} << (10 * (unit + 1));
      text.remove_suffix(1);
    }
  }
  const auto number = parse_int(text);
  if (!number || *number < 1) return std::nullopt;
  const auto count = static_cast<std::size_t>(*number);
  if (count > std::numeric_limits<std::size_t>::max() / scale) return std::nullopt;
  return count * scale;
}

std::optional<std::uint16_t> parse_port(std::string_view text) {
  const auto port = parse_count(text, 65535, 0);
  return port ? std::optional(static_cast<std::uint16_t>(*port)) : std::nullopt;
}

std::optional<std::int64_t> parse_count(std::string_view text, std::int64_t most, std::int64_t least) {
  const auto count = parse_int(text);
  return count && *count >= least && *count <= most ? count : std::nullopt;
}

std::chrono::milliseconds seconds_above_0(std::string_view flag, const std::string& text) {
  const auto seconds = parse_seconds(text);
  const bool is_above_0 = seconds && seconds->count() > 0;
  return required(is_above_0 ? seconds : std::nullopt, flag, text, "give seconds above 0 and at most 86400");
}

}  // namespace lockstep::launcher
