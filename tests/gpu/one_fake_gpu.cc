// SPDX-License-Identifier: Apache-2.0
// In a test's program: this host has one GPU, unless LOCKSTEP_FAKE_GPUS says otherwise.
#include <cstdlib>

namespace {
const int found = ::setenv("LOCKSTEP_FAKE_GPUS", "1", 0);
}
