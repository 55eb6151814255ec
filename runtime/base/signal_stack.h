// SPDX-License-Identifier: Apache-2.0
// A separate stack for signal handlers.
//
// Code that is made at run time may use the stack pointer as it likes: the matrix kernels of oneDNN point it into a
// buffer on the heap. A handler that runs on the interrupted stack then writes its frame, some 3 KiB with AVX-512, over
// the memory below that buffer. The handlers of this library are installed with SA_ONSTACK. The kernel gives a
// process's signal to the main thread if that one takes it, and to any other thread that takes it if not. So each
// thread that runs such code through this library is given a stack: it calls stop_on_signals(), multiplies tensors of
// ours, or runs the forward of a LibTorch module. Threads that OpenMP starts for our tensors take no signals.
#pragma once

#include "runtime/base/internal_api.h"

namespace lockstep {

// The calling thread's handlers with SA_ONSTACK run on a stack beside its own, until it ends. A stack that the program
// or a sanitizer has given the thread before stays. SystemError if memory for the stack is lacking.
LOCKSTEP_INTERNAL_API void give_signal_stack();

}  // namespace lockstep
