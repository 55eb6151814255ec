// SPDX-License-Identifier: Apache-2.0
// The group of one rank: every collective is done when it is called, and in place it touches nothing.
//
// Only a weighted all-reduce has something to do: it divides. send() and recv() meet in order per tag, with the
// process itself. Failure, threads and arguments are checked as in a group of many.
#pragma once

#include "runtime/comm/backend.h"

namespace lockstep {

// "single".
Backend single_backend();

}  // namespace lockstep
