// SPDX-License-Identifier: Apache-2.0
// agree_on() runs a check on each rank, and throws on every rank if the check fails on any rank.
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective. Runs `check` on every rank, and returns only if `check` has thrown on no rank. If `check` throws an Error
// on some ranks, throws InvalidArgument on every rank. The InvalidArgument's message contains `what` and the error of
// the lowest rank whose `check` has thrown.
void agree_on(ProcessGroup& group, std::string_view what, const std::function<void()>& check);

}  // namespace lockstep
