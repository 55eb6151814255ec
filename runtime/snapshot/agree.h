// SPDX-License-Identifier: Apache-2.0
// A check that each rank makes of what only it sees, and that fails on every rank or on none.
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective. Throws InvalidArgument on every rank, with the text of the lowest rank whose `check` has thrown an Error,
// and `what` in front; returns if none has.
void agree_on(ProcessGroup& group, std::string_view what, const std::function<void()>& check);

}  // namespace lockstep
