// SPDX-License-Identifier: Apache-2.0
// agree_on() runs a check on each rank, and throws on every rank if the check fails on any rank.
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective. Runs `check` on every rank, and returns if `check` throws on no rank. If `check` throws an Error on some
// ranks, throws InvalidArgument on every rank. The message of the InvalidArgument has `what` and the error's text from
// the lowest rank whose `check` has thrown.
void agree_on(ProcessGroup& group, std::string_view what, const std::function<void()>& check);

}  // namespace lockstep
