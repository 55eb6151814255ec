// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/logging.h"

#include <pthread.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/line_output.h"
#include "runtime/base/mutex.h"
#include "runtime/base/printable.h"

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

std::optional<LogLevel> parse_level(std::string_view text) {
  constexpr std::pair<std::string_view, LogLevel> kNames[] = {
      {"trace", LogLevel::trace},  {"debug", LogLevel::debug}, {"info", LogLevel::info}, {"warn", LogLevel::warn},
      {"warning", LogLevel::warn}, {"error", LogLevel::error}, {"off", LogLevel::off}};
  for (const auto& [name, level] : kNames) {
    if (text == name) return level;
  }
  return std::nullopt;
}

// spdlog's pattern language begins with %, which a label may hold.
std::string pattern(const std::string& label) {
  std::string escaped;
  for (const char c : label) escaped.append(c == '%' ? 2 : 1, c);
  return label.empty() ? "[lockstep] %^%l%$: %v" : "[lockstep " + escaped + "] %^%l%$: %v";
}

class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // Around fork(2): a thread that the child lacks may be writing a line.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    stderr_output().write({line.data(), line.size()});
  }
  void flush_() override {}
};

// The sink outlasts the logger.
std::shared_ptr<StderrSink> make_sink() {
  static StderrSink* sink = nullptr;
  stderr_output();  // fork(2) locks it behind the sink, as a line does
  const auto created = std::make_shared<StderrSink>();
  sink = created.get();
  const int failed = ::pthread_atfork([] { sink->lock(); }, [] { sink->unlock(); }, [] { sink->unlock(); });
  if (failed != 0) throw SystemError("pthread_atfork", failed);
  return created;
}

spdlog::logger* make_logger() {
  auto* created = new spdlog::logger("lockstep", make_sink());
  created->set_pattern(pattern(""));
  const auto wanted = Environment::of_process().get("LOCKSTEP_LOG_LEVEL");
  const auto level = wanted ? parse_level(*wanted) : LogLevel::info;
  created->set_level(to_spdlog(level.value_or(LogLevel::info)));
  if (!level) {
    created->warn("LOCKSTEP_LOG_LEVEL='{}' is not a level; logging at info. Use trace, debug, info, warn, error or off",
                  printable(*wanted));
  }
  return created;
}

// The logger is the library's own, not in spdlog's registry, so that a program's use of spdlog is left alone.
// It is leaked on purpose: threads may log while statics are destroyed.
spdlog::logger& logger() {
  static spdlog::logger* const instance = make_logger();
  return *instance;
}

struct Redirection {
  Mutex mutex;
  LogSink sink GUARDED_BY(mutex);
};

// Leaked like the logger.
Redirection& redirection() {
  static auto* const instance = new Redirection;
  return *instance;
}

}  // namespace

bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }

void log_line(LogLevel level, std::string_view raw) noexcept {
  try {
    const std::string text = printable_lines(raw);
    Redirection& elsewhere = redirection();
    {
      MutexLock lock(elsewhere.mutex);
      if (elsewhere.sink) {
        if (log_enabled(level)) elsewhere.sink(level, text);
        return;
      }
    }
    logger().log(to_spdlog(level), text);
  } catch (...) {  // A log that can't be written must not end the training it describes.
  }
}

void set_log_label(const std::string& label) {
  logger().set_pattern(pattern(label));
  stderr_output().set_label(label);
}

std::string_view name_of(LogLevel level) {
  const auto name = spdlog::level::to_string_view(to_spdlog(level));
  return {name.data(), name.size()};
}

void set_log_sink(LogSink sink) {
  Redirection& elsewhere = redirection();
  MutexLock lock(elsewhere.mutex);
  elsewhere.sink = std::move(sink);
}

}  // namespace lockstep
