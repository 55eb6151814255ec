// SPDX-License-Identifier: Apache-2.0
// In a test's program: every collective is compared over the ranks before it starts.
#include <cstdlib>

namespace {
const int checked = ::setenv("LOCKSTEP_CHECK_COLLECTIVES", "1", 0);
}
