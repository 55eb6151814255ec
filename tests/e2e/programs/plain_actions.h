// SPDX-License-Identifier: Apache-2.0
// What every program of these tests can do.
#pragma once

#include "tests/e2e/programs/script.h"

namespace lockstep::e2e {

// False if it isn't one of them.
bool perform_plain(const Action& action);

}  // namespace lockstep::e2e
