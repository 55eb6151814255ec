// SPDX-License-Identifier: Apache-2.0
// The end of a process by a lockstep::Error that nobody catches: one line on stderr, no core dump, and exit code 1, or
// 75 (job/exit_code.h) for PeerLost and for every error whose cause() is another rank's failure, so that a launcher
// can tell who failed from who only heard of it.
//
// When one rank fails, the others' errors are consequences; N core dumps of them help nobody. An error of LibTorch's
// (c10::Error) is one line too, without its backtrace, unless TORCH_SHOW_CPP_STACKTRACES=1 asks for it. Every other
// exception goes to the terminate handler that was there before.
#pragma once

namespace lockstep {

// Installs it, once per process. Any thread.
void install_uncaught_error_handler();
// For the line's label. -1: not known yet.
void set_uncaught_error_rank(int rank);

}  // namespace lockstep
