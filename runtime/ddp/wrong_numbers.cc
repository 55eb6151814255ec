// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/wrong_numbers.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "lockstep/rendezvous/roster.h"
#include "runtime/base/logging.h"
#include "runtime/comm/roster_cause.h"
#include "runtime/trace/process_trace.h"

namespace lockstep {

WrongNumbers::WrongNumbers(NotFinite reaction, std::shared_ptr<ProcessGroup> group)
    : reaction_(reaction), group_(std::move(group)) {}

void WrongNumbers::found(std::int64_t step, const std::string& parameter, std::int64_t at) {
  const trace::Finding finding{.kind = at % 2 == 0 ? trace::FindingKind::nan : trace::FindingKind::infinity,
                               .rank = comm::job_rank(group_->roster(), group_->rank()),
                               .step = step,
                               .parameter = parameter};
  const bool begins = !last_found_ || step != *last_found_ + 1;
  last_found_ = step;
  trace::keep_wrong_step();
  if (begins) trace::keep_finding(finding);
  const std::string text = trace::describe(finding);
  if (reaction_ == NotFinite::raise) raise(text);
  // Log only the first, second, fourth, eighth ... occurrence of NaN or infinity, because a loss scaler causes an
  // infinity now and then.
  if (!begins || !std::has_single_bit(static_cast<unsigned>(++times_))) return;
  log_warn(
      "Reducer: {}{}. Look first at the rank that logged this earliest, since the other ranks got its values. Set "
      "DdpOptions::not_finite to NotFinite::raise to let that rank stop the training",
      text, times_ == 1 ? std::string() : fmt::format(" (occurrence {})", times_));
}

void WrongNumbers::raise(const std::string& text) {
  const std::string whole = fmt::format(
      "Reducer: {}, and not_finite is NotFinite::raise. Look at this rank's batch of the step, at the learning rate, "
      "and for numbers too large for 16 bits",
      text);
  if (group_->size() > 1) {
    const rendezvous::Member& self = group_->roster()[static_cast<std::size_t>(group_->rank())];
    group_->abort(fmt::format("{}: {}", self.describe(), whole));
  }
  throw NotFiniteGradient(whole);
}

}  // namespace lockstep
