// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/coordinated_stop.h"

#include <fmt/format.h>

#include <array>
#include <span>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/cause.h"
#include "lockstep/trace/span.h"
#include "runtime/base/logging.h"
#include "runtime/base/signal_name.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/roster_cause.h"
#include "runtime/job/exit_code.h"
#include "runtime/job/step_board.h"

namespace lockstep {
namespace {

constexpr const char* kStopKey = "stop_requested";
// The value's first character, before the reason.
constexpr char kBySignal = 's';
constexpr char kByProgram = 'p';

std::chrono::nanoseconds timeout_of(const StopOptions& options) {
  if (options.timeout) {
    if (options.timeout->count() > 0) return *options.timeout;
    throw InvalidArgument(
        fmt::format("stop_on_signals: timeout of {} s was passed; the timeout must be above 0: pass, for example, "
                    "std::chrono::seconds(60)",
                    std::chrono::duration<double>(*options.timeout).count()));
  }
  return stop_timeout(Environment::of_process());
}

int job_rank(const ProcessGroup& group) { return comm::job_rank(group.roster(), group.rank()); }

// Why this rank asks, which got a signal.
std::string reason_of_signal(const ProcessGroup& group) {
  const auto& own = group.roster()[static_cast<std::size_t>(group.rank())];
  switch (launcher_stop()) {
    case LauncherStop::ends_ranks: return fmt::format("the launcher of host {} ends its ranks", own.host);
    case LauncherStop::takes_host_in: return "a host is taken in";
    case LauncherStop::none: break;
  }
  return fmt::format("rank {} got {}", job_rank(group), signal_name(StopSignals::first()));
}

}  // namespace

void CoordinatedStop::listen(const ProcessGroup& group, const StopOptions& options) {
  StopSignals::Options wanted{.timeout = timeout_of(options)};
  if (!options.on_signals.empty()) wanted.signals = options.on_signals;
  if (group.size() > 1) wanted.who = fmt::format("rank {}", job_rank(group));
  wanted.launcher = static_cast<pid_t>(Environment::of_process().get_int("LOCKSTEP_LAUNCHER_PID").value_or(0));
  requeue_exit_code(Environment::of_process());  // a bad value is found now, and not at the end
  auto signals = std::make_unique<StopSignals>(wanted);
  signals_ = std::move(signals);
  listens_.store(true);
}

void CoordinatedStop::request(ProcessGroup& group, std::string_view reason) {
  group.store().compare_set(kStopKey, "",
                            fmt::format("{}{}", kByProgram, reason.empty() ? "no reason was given" : reason));
  is_told_.store(true);
}

bool CoordinatedStop::is_requested() const noexcept {
  return is_told_.load() || (listens_.load() && StopSignals::first() != 0);
}

std::int64_t CoordinatedStop::word(ProcessGroup& group) {
  if (is_latched() || !is_requested()) return 0;
  if (!is_told_.load()) {
    group.store().compare_set(kStopKey, "", fmt::format("{}{}", kBySignal, reason_of_signal(group)));
    is_told_.store(true);
  }
  return 1;
}

void CoordinatedStop::agree(ProcessGroup& group, std::int64_t words) {
  if (words == 0 || is_latched()) return;
  const std::string value = group.store().get(kStopKey, Deadline::after(group.timeout()));
  by_signal_ = value.front() == kBySignal;
  reason_ = value.substr(1);
  is_latched_.store(true, std::memory_order_release);
  if (listens_.load()) StopSignals::obeyed();
  const std::int64_t done = steps_done_.load();
  const std::string where = done < 0 ? "" : fmt::format(" after {} {}", done, done == 1 ? "step" : "steps");
  if (group.rank() == 0) log_info("stopping{}: {}", where, reason_);
  // For the job's launcher, which can't tell by exit codes alone whether the ranks have stopped as they were asked.
  group.internals().report_failure({.kind = Cause::Kind::stopped,
                                    .rank = job_rank(group),
                                    .reporter = job_rank(group),
                                    .step = done,
                                    .ends_group = false,
                                    .text = reason_});
}

void CoordinatedStop::set_steps_before(std::int64_t steps) noexcept {
  steps_before_.store(steps);
  if (steps > 0) steps_done_.store(steps);
}

void CoordinatedStop::step_begun(std::int64_t step) noexcept {
  StopSignals::step_begun(steps_before_.load() + step);
  keep_step_begun();
}

void CoordinatedStop::step_ended(std::int64_t step) noexcept {
  const std::int64_t done = steps_before_.load() + step + 1;
  steps_done_.store(done);
  StopSignals::step_ended(done);
  keep_steps_done(done);
}

std::optional<std::string> CoordinatedStop::reason() const {
  return is_latched() ? std::optional(reason_) : std::nullopt;
}

void stop_on_signals(ProcessGroup& group, const StopOptions& options) {
  group.internals().coordinated_stop()->listen(group, options);
}
void request_stop(ProcessGroup& group, std::string_view reason) {
  group.internals().coordinated_stop()->request(group, reason);
}
std::optional<std::string> should_stop(const ProcessGroup& group) {
  return group.internals().coordinated_stop()->reason();
}

std::optional<std::string> should_stop(ProcessGroup& group, StopView view) {
  CoordinatedStop& stop = *group.internals().coordinated_stop();
  if (view == StopView::this_rank) {
    return stop.is_requested() ? std::optional(stop.reason().value_or("this rank asks to stop")) : std::nullopt;
  }
  if (view == StopView::all_ranks && !stop.is_latched()) {
    std::array<std::int64_t, 1> words{stop.word(group)};
    const trace::Span span(trace::SpanKind::collective);
    group.all_reduce(BufferView(std::span<std::int64_t>(words)), {.op = ReduceOp::max}).wait();
    stop.agree(group, words[0]);
  }
  return stop.reason();
}

int exit_code(const ProcessGroup& group) {
  return group.internals().coordinated_stop()->is_by_signal() ? requeue_exit_code(Environment::of_process()) : 0;
}

}  // namespace lockstep
