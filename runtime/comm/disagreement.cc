// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/disagreement.h"

#include <utility>

#include "lockstep/job/cause.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/roster_cause.h"

namespace lockstep::comm {

void throw_disagreement(ProcessGroup& group, std::string text, int rank, std::int64_t step) {
  barrier_before_throw(group);
  Cause cause = cause_about(group.roster(), Cause::Kind::mismatch, rank, group.rank(), std::move(text));
  cause.step = step;
  cause.ends_group = false;
  group.internals().report_failure(cause);
  throw_error(cause);
}

}  // namespace lockstep::comm
