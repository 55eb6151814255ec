// SPDX-License-Identifier: Apache-2.0
// The library's log: spdlog underneath, on stderr, one line per event. A stderr that nobody reads holds up no line
// (line_output.h).
//
// LOCKSTEP_LOG_LEVEL chooses trace, debug, info (default), warn, error or off; another value is
// reported once and counts as info. Any thread may log. Set a label once the
// rank is known, so that lines of many ranks can be told apart.
#pragma once

#include <fmt/core.h>

#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/internal_api.h"

namespace lockstep {

enum class LogLevel { trace, debug, info, warn, error, off };

// True if a line of this level would be written.
LOCKSTEP_INTERNAL_API bool log_enabled(LogLevel level);
// Writes one line. Never throws.
LOCKSTEP_INTERNAL_API void log_line(LogLevel level, std::string_view text) noexcept;
// Puts "[label] " before every later line, for example "rank 2".
void set_log_label(const std::string& label);

// "info", "warning": as the lines have it.
std::string_view name_of(LogLevel level);
// Takes every later line instead of stderr; an empty one gives them back to it. For a program that has a console of its
// own. The sink gets the text without label and level, from whichever thread logs, one call at a time; it must not log,
// and must not wait for a thread that may. Once this returns, no call of the former sink is running.
using LogSink = std::function<void(LogLevel level, std::string_view text)>;
LOCKSTEP_INTERNAL_API void set_log_sink(LogSink sink);

// A line is lost where memory for it is lacking: these functions never throw, so that a handler of bad_alloc may call
// them.
template <typename... Args>
void log_at(LogLevel level, fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::exception&) {
  }
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::debug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::info, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::warn, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::error, format, std::forward<Args>(args)...);
}

}  // namespace lockstep
