// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_relay.h"

#include <fmt/format.h>

#include "launcher/base/system.h"

namespace lockstep::launcher {

LogRelay::LogRelay() {
  set_log_sink([this](LogLevel level, std::string_view text) { put(level, text); });
}

// The log's sink is removed first, since other threads may log while the rest is printed.
LogRelay::~LogRelay() {
  set_log_sink({});
  for (const auto& line : take()) print_error(fmt::format("lockstep run: {}", line));
}

std::vector<std::string> LogRelay::take() {
  auto lines = lines_.take();
  if (const auto dropped = dropped_.exchange(0); dropped > 0) {
    lines.push_back(
        fmt::format("warning: {} more lines of the log were dropped: they came faster than they are read", dropped));
  }
  return lines;
}

void LogRelay::put(LogLevel level, std::string_view text) {
  if (!lines_.put(fmt::format("{}: {}", name_of(level), text))) ++dropped_;
}

}  // namespace lockstep::launcher
