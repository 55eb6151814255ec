// SPDX-License-Identifier: Apache-2.0
// In a test's program: the fake cuBLASLt is the one that it finds, unless LOCKSTEP_CUBLASLT_LIB names another.
#include <cstdlib>

namespace {
const int found_cublaslt = ::setenv("LOCKSTEP_CUBLASLT_LIB", LOCKSTEP_FAKE_CUBLASLT_FILE, 0);
}
