// SPDX-License-Identifier: Apache-2.0
// The texts behind flags, as values. Each returns nothing for what it can't take; the caller says what was wanted.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::launcher {

// "0.7": from 0 to 86400 seconds.
std::optional<std::chrono::milliseconds> parse_seconds(const std::string& text);
// "512M", "1G", "64K", "8192": bytes, at least 1, in powers of 1024.
std::optional<std::size_t> parse_bytes(std::string_view text);
// From 0 to 65535.
std::optional<std::uint16_t> parse_port(std::string_view text);
// A whole number from 1 to `most`.
std::optional<std::int64_t> parse_count(std::string_view text, std::int64_t most);

}  // namespace lockstep::launcher
