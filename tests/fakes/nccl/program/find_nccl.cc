// SPDX-License-Identifier: Apache-2.0
// In a test's program: the fake NCCL is the one that it finds, unless LOCKSTEP_NCCL_LIB names another.
#include <cstdlib>

namespace {
const int found_nccl = ::setenv("LOCKSTEP_NCCL_LIB", LOCKSTEP_FAKE_NCCL_FILE, 0);
}
