#include "runtime/base/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "runtime/base/environment.h"

namespace lockstep {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::trace: return spdlog::level::trace;
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warn: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
    case LogLevel::off: return spdlog::level::off;
  }
  return spdlog::level::info;
}

std::string pattern(const std::string& label) {
  return label.empty() ? "[lockstep] %^%l%$: %v" : "[lockstep " + label + "] %^%l%$: %v";
}

// The logger is the library's own, not in spdlog's registry, so that a program's use of spdlog is left alone.
// It is leaked on purpose: threads may log while statics are destroyed.
spdlog::logger& logger() {
  static spdlog::logger* const instance = [] {
    auto* created = new spdlog::logger("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_pattern(pattern(""));
    const auto wanted = Environment::of_process().get("LOCKSTEP_LOG_LEVEL");
    created->set_level(wanted ? spdlog::level::from_str(*wanted == "warning" ? "warn" : *wanted) : spdlog::level::info);
    created->flush_on(spdlog::level::trace);
    return created;
  }();
  return *instance;
}

}  // namespace

bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }

void log_line(LogLevel level, std::string_view text) noexcept {
  try {
    logger().log(to_spdlog(level), text);
  } catch (...) {  // A log that can't be written must not end the training it describes.
  }
}

void set_log_label(std::string label) { logger().set_pattern(pattern(label)); }

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

}  // namespace lockstep
