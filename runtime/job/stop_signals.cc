// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/stop_signals.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <string_view>

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/base/parse_timeout.h"
#include "runtime/base/signal_name.h"
#include "runtime/base/signal_stack.h"
#include "runtime/base/write_at_once.h"
#include "runtime/job/step_board.h"

namespace lockstep {
namespace {

constexpr std::size_t kSignals = 65;  // as many as Linux has, and 0

// State that handlers read and write: lock-free, and nothing that could be half written when they run.
struct Seen {
  std::atomic<int> first{0};
  std::array<std::atomic<std::int64_t>, kSignals> came_at{};  // CLOCK_MONOTONIC, in ns; 0: not yet
  std::atomic<std::int64_t> begun{-1};
  std::atomic<std::int64_t> ended{-1};
  std::atomic<pid_t> process{0};
  std::atomic<pid_t> launcher{0};
  std::atomic<std::int64_t> timeout_ns{0};
  std::atomic<bool> has_timer{false};
  std::atomic<bool> is_obeyed{false};
  // Set before `has_timer` and before the handler that reads them.
  timer_t timer{};
  std::array<struct sigaction, kSignals> before{};
  std::array<char, 64> who{};
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);
Seen seen;

Mutex installing;
int living GUARDED_BY(installing) = 0;
std::vector<int> installed GUARDED_BY(installing);

std::int64_t now_ns() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// A line built without memory or locks.
class Line {
 public:
  Line& operator<<(std::string_view text) noexcept {
    const std::size_t count = std::min(text.size(), bytes_.size() - size_);
    std::memcpy(bytes_.data() + size_, text.data(), count);
    size_ += count;
    return *this;
  }
  Line& operator<<(std::int64_t number) noexcept {
    std::array<char, 20> digits{};
    std::size_t at = digits.size();
    do {
      digits[--at] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    return *this << std::string_view(digits.data() + at, digits.size() - at);
  }
  void write() const noexcept {
    // A line that stderr does not take is lost: the loss can't be reported here, and the process is to end.
    constexpr int kPatience = 200;  // ms
    write_within(STDERR_FILENO, std::string_view(bytes_.data(), size_), kPatience);
  }

 private:
  std::array<char, 640> bytes_{};
  std::size_t size_ = 0;
};

std::string_view name_in_handler(int signal) noexcept {
  const char* const name = sigabbrev_np(signal);
  return name == nullptr ? "?" : name;
}

// The signal is blocked while its handler runs: it arrives behind the handler, and ends the process.
void end_by(int signal) noexcept {
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  sigemptyset(&by_default.sa_mask);
  sigaction(signal, &by_default, nullptr);
  kill(getpid(), signal);
}

void set_timer(std::int64_t nanoseconds) noexcept {
  if (!seen.has_timer.load()) return;
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000);
  when.it_value.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
  timer_settime(seen.timer, 0, &when, nullptr);
}

// Says why this rank has not finished a step: within a backward it computes or waits for others; outside of one the
// others wait for it.
void report_timeout(int signal) noexcept {
  const std::int64_t begun = seen.begun.load(), ended = seen.ended.load();
  Line line;
  line << "[lockstep";
  if (seen.who[0] != '\0') line << " " << std::string_view(seen.who.data());
  line << "] did not stop: "
       << (launcher_stop() == LauncherStop::ends_ranks ? "its launcher ends all ranks, by" : "it got") << " SIG"
       << name_in_handler(signal) << ", and no step of its training has ended in the "
       << seen.timeout_ns.load() / 1'000'000'000 << "." << seen.timeout_ns.load() / 100'000'000 % 10 << " s since; ";
  if (begun < 0) {
    line << "it has begun none";
  } else if (begun >= ended) {
    line << "it has done " << begun
         << " steps, and is within the backward of the next, where it computes or waits for a rank that has not begun "
            "it";
  } else {
    line << "it has done " << ended
         << " steps, and is outside of a backward: reading data, evaluating, or in its own code";
  }
  line << "; ending by SIG" << name_in_handler(signal) << ". LOCKSTEP_STOP_TIMEOUT gives it longer\n";
  line.write();
}

void on_signal(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  if (getpid() != seen.process.load()) {
    end_by(signal);
  } else if (info->si_code == SI_TIMER && info->si_value.sival_ptr == &seen) {
    const int first = seen.first.load();
    if (first != 0) {
      report_timeout(first);
      end_by(first);
    }
  } else {
    const auto slot = static_cast<std::size_t>(signal);
    const std::int64_t now = now_ns();
    std::int64_t earlier = 0;
    const bool is_launchers = info->si_code == SI_USER && info->si_pid != 0 && info->si_pid == seen.launcher.load();
    if (!seen.came_at[slot].compare_exchange_strong(earlier, now) && !is_launchers &&
        now - earlier > std::chrono::nanoseconds(StopSignals::kOneRequest).count()) {
      end_by(signal);
    } else {
      int none = 0;
      if (seen.first.compare_exchange_strong(none, signal)) set_timer(seen.timeout_ns.load());
      if (seen.is_obeyed.load()) set_timer(0);  // after the other set_timer(): obeyed() may run in between
      const struct sigaction& before = seen.before[slot];
      if ((before.sa_flags & SA_SIGINFO) != 0) {
        before.sa_sigaction(signal, info, context);
      } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(signal);
      }
    }
  }
  errno = error;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_signal;
}

void install(int signal) REQUIRES(installing) {
  if (std::find(installed.begin(), installed.end(), signal) != installed.end()) return;
  struct sigaction now {};
  if (signal < 1 || static_cast<std::size_t>(signal) >= kSignals || signal == SIGKILL || signal == SIGSTOP ||
      sigaction(signal, nullptr, &now) != 0) {
    throw InvalidArgument(
        fmt::format("stop_on_signals: {} can't be handled; give SIGTERM, SIGINT, SIGUSR1 or another signal that a "
                    "process can handle",
                    signal_name(signal)));
  }
  if (now.sa_handler == SIG_IGN && (now.sa_flags & SA_SIGINFO) == 0) return;
  seen.before[static_cast<std::size_t>(signal)] = now;
  struct sigaction ours {};
  ours.sa_sigaction = on_signal;
  ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  for (const int other : default_stop_signals()) sigaddset(&ours.sa_mask, other);
  if (sigaction(signal, &ours, nullptr) != 0) throw SystemError("sigaction", errno);
  installed.push_back(signal);
}

// The timer sends a signal that is handled here; the handler recognises the timer's signal by its value.
void make_timer() REQUIRES(installing) {
  if (seen.has_timer.load() || installed.empty()) return;
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = installed.front();
  event.sigev_value.sival_ptr = &seen;
  if (timer_create(CLOCK_MONOTONIC, &event, &seen.timer) != 0) {
    throw SystemError("stop_on_signals: timer_create", errno,
                      "raise 'ulimit -i', pending signals, of which a timer is one, or do without stop_on_signals");
  }
  seen.has_timer.store(true);
}

// Deletes the timer before the handler that recognises its signal.
void uninstall() REQUIRES(installing) {
  if (seen.has_timer.exchange(false) && seen.process.load() == getpid()) timer_delete(seen.timer);
  for (const int signal : installed) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) != 0 || !is_ours(now)) continue;  // another's handler came later, and stays
    sigaction(signal, &seen.before[static_cast<std::size_t>(signal)], nullptr);
  }
  installed.clear();
  seen.first.store(0);
  for (auto& at : seen.came_at) at.store(0);
  seen.begun.store(-1);
  seen.ended.store(-1);
}

}  // namespace

std::chrono::nanoseconds stop_timeout(const Environment& environment) {
  const auto text = environment.get("LOCKSTEP_STOP_TIMEOUT");
  return text ? parse_timeout(*text, "environment: LOCKSTEP_STOP_TIMEOUT") : std::chrono::seconds(25);
}

std::vector<int> default_stop_signals() { return {SIGTERM, SIGINT, SIGUSR1}; }

StopSignals::StopSignals(const Options& options) {
  MutexLock lock(installing);
  seen.timeout_ns.store(options.timeout.count());
  const std::size_t count = std::min(options.who.size(), seen.who.size() - 1);
  std::copy_n(options.who.begin(), count, seen.who.begin());
  seen.who[count] = '\0';
  seen.process.store(getpid());
  seen.launcher.store(options.launcher);
  seen.is_obeyed.store(false);
  give_signal_stack();
  try {
    for (const int signal : options.signals) install(signal);
    make_timer();
  } catch (...) {
    if (living == 0) uninstall();
    throw;
  }
  ++living;
}

StopSignals::~StopSignals() {
  MutexLock lock(installing);
  if (--living == 0) uninstall();
}

int StopSignals::first() noexcept { return seen.first.load(); }
void StopSignals::obeyed() noexcept {
  seen.is_obeyed.store(true);
  set_timer(0);
}
void StopSignals::step_begun(std::int64_t done) noexcept { seen.begun.store(done); }
void StopSignals::step_ended(std::int64_t done) noexcept { seen.ended.store(done); }

}  // namespace lockstep
