#include "launcher/log_relay.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "launcher/system.h"
#include "runtime/base/error.h"

namespace lockstep::launcher {

LogRelay::LogRelay() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw SystemError("eventfd", errno);
  set_log_sink([this](LogLevel level, std::string_view text) { put(level, text); });
}

LogRelay::~LogRelay() {
  set_log_sink({});
  for (const auto& line : take()) print_error(fmt::format("lockstep run: {}", line));
}

std::vector<std::string> LogRelay::take() {
  MutexLock lock(mutex_);
  std::uint64_t count = 0;
  // Nothing there (EAGAIN) is no error; nothing else can go wrong with an eventfd of our own.
  if (read(event_.get(), &count, sizeof count) < 0 && errno != EAGAIN) throw SystemError("read an eventfd", errno);
  auto lines = std::exchange(lines_, {});
  if (dropped_ > 0) {
    lines.push_back(fmt::format("warning: {} more lines of the log were dropped: they came faster than they are read",
                                std::exchange(dropped_, 0)));
  }
  return lines;
}

void LogRelay::put(LogLevel level, std::string_view text) {
  MutexLock lock(mutex_);
  if (lines_.size() >= kMostLines) {
    ++dropped_;
    return;
  }
  lines_.push_back(fmt::format("{}: {}", name_of(level), text));
  const std::uint64_t one = 1;
  if (write(event_.get(), &one, sizeof one) != sizeof one) throw SystemError("write an eventfd", errno);
}

}  // namespace lockstep::launcher
