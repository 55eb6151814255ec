// SPDX-License-Identifier: Apache-2.0
// The texts behind flags, as values. Each parse_ returns nothing for what it can't take; the caller says what was
// wanted.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

// "0.7": from 0 to 86400 seconds.
std::optional<std::chrono::milliseconds> parse_seconds(const std::string& text);
// "512M", "1G", "64K", "8192": bytes, at least 1, in powers of 1024.
std::optional<std::size_t> parse_bytes(std::string_view text);
// From 0 to 65535.
std::optional<std::uint16_t> parse_port(std::string_view text);
// A whole number from `least` to `most`.
std::optional<std::int64_t> parse_count(std::string_view text, std::int64_t most, std::int64_t least = 1);
inline auto up_to(std::int64_t most, std::int64_t least = 1) {
  return [most, least](std::string_view text) { return parse_count(text, most, least); };
}

template <typename... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  throw InvalidArgument(fmt::format(text, std::forward<Arguments>(arguments)...));
}
// The value of a flag that was given as `text`; InvalidArgument "FLAG TEXT: WANTED" if that could not be parsed.
template <typename Value>
Value required(std::optional<Value> value, std::string_view flag, std::string_view text, std::string_view wanted) {
  if (!value) refuse("{} {}: {}", flag, text, wanted);
  return *std::move(value);
}
// Sets `target` to the value of a flag, if that was given. `parse` returns nothing for what it can't take.
template <typename Target, typename Parse>
void read_flag(std::string_view flag, const std::string& text, Target& target, Parse parse, std::string_view wanted) {
  if (!text.empty()) target = static_cast<Target>(required(parse(text), flag, text, wanted));
}
std::chrono::milliseconds seconds_above_0(std::string_view flag, const std::string& text);
// Returns the result of `parse`. An InvalidArgument that `parse` throws gets "FLAG: " in front.
template <typename Parse>
auto parsed_as(std::string_view flag, Parse parse) {
  try {
    return parse();
  } catch (const InvalidArgument& error) {
    refuse("{}: {}", flag, error.what());
  }
}

}  // namespace lockstep::launcher
