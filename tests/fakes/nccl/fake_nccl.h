// SPDX-License-Identifier: Apache-2.0
// An NCCL without a GPU: libfake_nccl.so, to be named by LOCKSTEP_NCCL_LIB, over the streams of tests/fakes/cudart.
//
// Ranks may be threads or processes: they meet in a mapped file that the unique id names. Collectives and messages run
// as operations of the fake streams, so what they read and write is checked there. As in NCCL a non-blocking call
// begins something that another thread does later, kernels wait for their peers for ever, and only an abort makes them
// leave.
//
// It checks that its caller keeps NCCL's rules:
//  - one thread at a time per communicator, whose current device is the communicator's;
//  - nothing but ncclCommGetAsyncError and ncclCommAbort while a call is in progress;
//  - no call after destroy, nor once an abort has begun; finalize, with nothing left in the stream, before destroy; no
//    registration left then;
//  - a send and its receive are launched by both sides: each waits for the other for ever;
//  - no memory freed that is registered, or that an operation may still use: ncclMemFree waits for nothing;
//  - the same operations in the same order on all ranks. Where they differ the operation hangs, as NCCL's may;
//  - of two communicators of one device the launches in one order on all ranks that have both (launch_order.h).
// A violation is written to stderr and aborts the process, unless a Violations object lives.
//
// As in NCCL destroy and abort wait for all that the device has to do, be it the program's or another communicator's.
//
// What goes wrong is said by LOCKSTEP_FAKE_NCCL=RULE;... or inject():
//  CALL=EFFECT[@N][:rankR]      of the N-th such call on a communicator (every one, without @N), on rank R (on all);
//                               :gpuN in place of :rankR: on the N-th GPU of the host, whatever its rank is
//    init=hang                  the communicator never comes up
//    init=error                 nor does it, with ncclSystemError
//    all_reduce=hang@17         the kernel never ends, until the communicator is aborted; broadcast, send ... alike
//    all_reduce=remote@17       the same, and ncclCommGetAsyncError says ncclRemoteError
//    all_reduce=flaky@17        ncclCommGetAsyncError says ncclRemoteError a few times, and all is well
//    all_reduce=wrong@17        the last element of the result is wrong on that rank; broadcast ... alike
//    all_reduce=error@17        the call returns ncclInternalError
//    finalize=hang              the communicator never ends in order
//    abort=block                the call never returns; destroy, init, register alike
//    abort=wait                 the call returns once heal() is called
//    abort=early                the call waits for nothing: kernels leave when it is their turn
//    mem_alloc=error, register=error, deregister=error
//  version=21700                what ncclGetVersion says; its rules are those of 2.27 all the same
//
// Values are combined in rank order, in the element's type for 16-bit floats each step: which real NCCL does not
// promise. Facts of real GPUs are none of its business.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fake_nccl {

// Adds a rule; counts of calls go on. Throws std::invalid_argument.
void inject(std::string_view rule);
// Takes all rules back, and lets calls return that wait for it. What hangs goes on hanging.
void heal();

// The calls of this process since the last take, "rank 1: all_reduce 100 float32 sum", in their order.
std::vector<std::string> take_calls();

// While one lives, violations are collected instead of ending the process. One at a time.
class Violations {
 public:
  Violations();
  ~Violations();
  Violations(const Violations&) = delete;
  Violations& operator=(const Violations&) = delete;
  std::vector<std::string> take();
};

}  // namespace lockstep::fake_nccl
