// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/restart_policy.h"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/base/amounts.h"
#include "launcher/base/exit_codes.h"

namespace lockstep::launcher {

RestartPolicy::Decision RestartPolicy::decide(const StartEnd& end) {
  if (end.kind == StartEnd::Kind::over) return {.exit_code = end.exit_code};
  // Nothing has been tried yet, so it counts neither as a restart nor as one without a step.
  if (end.kind == StartEnd::Kind::awaits_host) {
    return {.pause = std::chrono::milliseconds(0), .text = "the ranks start again once another host has joined"};
  }
  const bool is_free = end.kind == StartEnd::Kind::resized || (end.kind == StartEnd::Kind::host_lost && may_resize_);
  if (most_ == 0 && !is_free) return {.exit_code = end.exit_code};
  if (!end.why_no_start.empty()) return refuse(end, fmt::format("{}; exit code {}", end.why_no_start, end.exit_code));
  reports_steps_ = reports_steps_ || end.reports_steps;
  const bool is_further = reports_steps_ ? end.steps_done > furthest_ : end.ran >= kLongEnough;
  furthest_ = std::max(furthest_, end.steps_done);
  // The loss of a host does not count against the program.
  const bool is_without_a_step = !has_worked_ && !is_further;
  has_worked_ = has_worked_ || is_further;
  if (is_without_a_step && end.kind == StartEnd::Kind::failed) return refuse_first(end);
  if (end.kind != StartEnd::Kind::resized) stalled_ = is_further ? 0 : stalled_ + 1;
  count_culprit(end, is_further);
  if (end.wrong_host && !end.culprit) {
    auto decision =
        refuse(end, fmt::format("host {} computes wrong values, and the job can't continue without it; exit "
                                "code {}",
                                *end.wrong_host, kExitNoProgress));
    decision.exit_code = kExitNoProgress;
    return decision;
  }
  const bool leaves_out = end.wrong_host || culprits_ >= kMostStalled;
  if (stalled_ >= kMostStalled && !leaves_out) {
    auto decision = refuse(end, fmt::format("{} starts in a row have not got beyond {}; exit code {}", stalled_,
                                            count_of(furthest_, "step"), kExitNoProgress));
    decision.exit_code = kExitNoProgress;
    return decision;
  }
  if (leaves_out) stalled_ = culprits_ = 0;
  const auto pause = stalled_ == 0 ? std::chrono::milliseconds(0)
                                   : std::min(kMostPause, kFirstPause * (1 << std::min(stalled_ - 1, 10)));
  const std::string how =
      fmt::format("{}{}", reports_steps_ ? fmt::format("; {} done", count_of(furthest_, "step")) : "",
                  pause.count() == 0 ? "" : fmt::format("; in {} s", pause.count() / 1000));
  if (is_free) return {.pause = pause, .text = "starting the ranks of the hosts that are here" + how};
  if (used_ == most_)
    return refuse(end, fmt::format("the limit of {} is reached (--max-restarts)", count_of(most_, "restart")));
  ++used_;
  Decision decision{.pause = pause, .text = fmt::format("restart {} of {} (--max-restarts){}", used_, most_, how)};
  if (leaves_out) {
    decision.left_out = end.culprit;
    const std::string why =
        end.wrong_host ? "it computes wrong values"
                       : fmt::format("its ranks failed first in {} starts in a row without a new step", kMostStalled);
    decision.text = fmt::format("host {} is left out: {}; {}", end.culprit->name, why, decision.text);
  }
  return decision;
}

void RestartPolicy::count_culprit(const StartEnd& end, bool is_further) {
  if (end.kind == StartEnd::Kind::resized) return;
  const int agent = end.culprit && !is_further ? end.culprit->agent : -1;
  culprits_ = agent < 0 ? 0 : agent == culprit_ ? culprits_ + 1 : 1;
  culprit_ = agent;
}

RestartPolicy::Decision RestartPolicy::refuse_first(const StartEnd& end) const {
  if (end.reports_steps) {
    return refuse(end, "the job failed before it had finished a step; correct the error, and run the same command");
  }
  return refuse(end, fmt::format("the job ran for {:.1f} s and reported no step; a program that reports no steps (such "
                                 "as a Python script) is started again only if it ran for {} s",
                                 std::chrono::duration<double>(end.ran).count(), kLongEnough.count()));
}

RestartPolicy::Decision RestartPolicy::refuse(const StartEnd& end, std::string why) const {
  return {.exit_code = end.exit_code, .text = "not started again: " + std::move(why)};
}

}  // namespace lockstep::launcher
