// SPDX-License-Identifier: Apache-2.0
// A number that tells this process from every other.
#pragma once

#include <cstdint>

namespace lockstep {

// Drawn by chance when this process, or the one it was forked from, first asked, and mixed with the pid at each call: a
// forked child has another one, and pids of two containers may be equal. Any thread.
std::uint64_t process_token();

}  // namespace lockstep
