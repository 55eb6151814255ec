// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/job_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>

#include "runtime/base/printable.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {

std::string JobLog::prefix(std::string_view who) {
  const auto now = std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now());
  const auto second = std::chrono::floor<std::chrono::seconds>(now);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z {}: ", fmt::gmtime(std::chrono::system_clock::to_time_t(second)),
                     (now - second).count(), who);
}

std::string JobLog::flush() {
  if (lines_.empty()) return {};
  recent_.put(lines_);
  std::string problem = file_.open() ? file_.write(lines_) : std::string();
  lines_.clear();
  return problem;
}

std::string JobLog::message(std::string_view text) {
  const std::string printable = printable_lines(text);
  const std::string own = prefix("lockstep run");
  std::string_view rest = printable;
  do {
    line(own, take_word(rest, '\n'));
  } while (!rest.empty());
  return flush();
}

}  // namespace lockstep::launcher
