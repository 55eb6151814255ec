// SPDX-License-Identifier: Apache-2.0
// agree_on() runs a check on each rank, which fails on every rank or on no rank.
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective. Runs `check`, and returns if `check` throws on no rank. If `check` throws an Error on some ranks, throws
// InvalidArgument on every rank, with `what` and the error's text from the lowest of these ranks.
void agree_on(ProcessGroup& group, std::string_view what, const std::function<void()>& check);

}  // namespace lockstep
