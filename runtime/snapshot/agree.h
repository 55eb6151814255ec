// SPDX-License-Identifier: Apache-2.0
// A check of something that each rank sees for itself, which fails on every rank or on none.
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective. If `check` throws an Error on some ranks, throws InvalidArgument on every rank, with `what` and the text
// of the lowest of these ranks; otherwise returns.
void agree_on(ProcessGroup& group, std::string_view what, const std::function<void()>& check);

}  // namespace lockstep
