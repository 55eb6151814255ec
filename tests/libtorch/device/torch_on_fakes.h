// CUDA tensors for a LibTorch that has none: over the fake CUDA runtime, whose checks they bring to torch's side.
//
// A program that links it gets, before main: torch's memory of the device, its streams, events and current stream, as
// LibTorch for GPUs has them, and one kernel for every operator, which puts the CPU's into torch's current stream with
// what it reads and writes. Autograd's own threads and its order between streams are LibTorch's. So a use of memory
// that neither a stream nor an event orders ends the process, whoever of the two put it in.
//
// An operator returns when it has run, since its result's shape is not known before. The fake does not count that as
// a wait: two operators that nothing orders are found all the same, and host_synchronisations() stays true.
//
// Written for LibTorch 1.13; no view but as_strided, view and what torch makes of them.
#pragma once

#include <c10/core/Stream.h>

#include "runtime/device/stream.h"

namespace lockstep::testing {

// A stream of ours as torch knows it: c10::StreamGuard(torch_stream(stream)).
c10::Stream torch_stream(StreamView stream);

}  // namespace lockstep::testing
