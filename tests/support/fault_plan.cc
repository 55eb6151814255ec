// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fault_plan.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"

namespace lockstep::testing {
namespace {

sigset_t release_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  return set;
}

// The text up to `mark`, which is taken away together with it.
std::string_view next_part(std::string_view& rest, char mark) {
  const auto end = rest.find(mark);
  const auto part = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return part;
}

std::optional<Fault::Kind> kind_of(std::string_view name) {
  if (name == "kill") return Fault::Kind::kill;
  if (name == "stop") return Fault::Kind::stop;
  if (name == "delay") return Fault::Kind::delay;
  return std::nullopt;
}

Fault parse_fault(std::string_view text) {
  std::string_view rest = text;
  const auto kind = kind_of(next_part(rest, ':'));
  std::optional<std::int64_t> rank, step, limit;
  bool good = kind.has_value();
  while (good && !rest.empty()) {
    auto field = next_part(rest, ',');
    const auto name = next_part(field, '=');
    auto* value = name == "rank" ? &rank : name == "step" ? &step : name == "ms" ? &limit : nullptr;
    good = value != nullptr && !*value && (*value = parse_int(field)) && **value >= 0;
  }
  if (!good || !rank || !step || limit.has_value() != (kind == Fault::Kind::delay)) {
    throw InvalidArgument(fmt::format(
        "{}: '{}' is no fault; the form is kill:rank=1,step=5 or stop:... or delay:rank=1,step=5,ms=1000, with ';' "
        "between them",
        kFaultsVariable, text));
  }
  return {.kind = *kind,
          .rank = static_cast<int>(*rank),
          .step = static_cast<int>(*step),
          .limit = std::chrono::milliseconds(limit.value_or(0))};
}

void delay(const Fault& fault) {
  fmt::print("delayed at step {}\n", fault.step);
  std::fflush(stdout);
  const auto set = release_signal();
  const auto deadline = Deadline::after(fault.limit);
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.remaining()).count();
    const timespec limit{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
    if (sigtimedwait(&set, nullptr, &limit) == SIGUSR2 || errno == EAGAIN) return;
    if (errno != EINTR) throw SystemError("sigtimedwait", errno);
  }
}

}  // namespace

std::vector<Fault> parse_faults(std::string_view text) {
  std::vector<Fault> faults;
  while (!text.empty()) faults.push_back(parse_fault(next_part(text, ';')));
  return faults;
}

FaultPlan::FaultPlan(int rank) {
  for (const auto& fault : parse_faults(Environment::of_process().get(kFaultsVariable).value_or(""))) {
    if (fault.rank != rank) continue;
    faults_.push_back(fault);
    if (fault.kind != Fault::Kind::delay) continue;
    const auto set = release_signal();
    if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr)) throw SystemError("pthread_sigmask", error);
  }
}

void FaultPlan::at(int step) const {
  for (const auto& fault : faults_) {
    if (fault.step != step) continue;
    switch (fault.kind) {
      case Fault::Kind::kill: raise(SIGKILL); break;
      case Fault::Kind::stop: raise(SIGSTOP); break;
      case Fault::Kind::delay: delay(fault); break;
    }
  }
}

}  // namespace lockstep::testing
