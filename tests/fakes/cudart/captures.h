// SPDX-License-Identifier: Apache-2.0
// The capture of streams into a graph, as far as it is everybody's business: what it refuses and what breaks it. The
// graph itself is nothing. One at a time.
//
// Threads: the caller's lock.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <optional>
#include <set>
#include <thread>

#include "tests/fakes/cudart/stream.h"

namespace lockstep::fake_cuda {

class Captures {
 public:
  cudaError_t begin(const FakeStream& stream, cudaStreamCaptureMode mode);
  // cudaErrorStreamCaptureInvalidated if something broke it, cudaErrorStreamCaptureUnjoined if another stream was
  // pulled in and has not come back.
  cudaError_t end(const FakeStream& stream);
  bool takes(const FakeStream& stream) const { return current_ && current_->streams.count(&stream) != 0; }
  // Work in the default stream would come into the order of one that is captured.
  bool takes_a_blocking_one() const {
    return current_ && std::any_of(current_->streams.begin(), current_->streams.end(),
                                   [](const FakeStream* stream) { return stream->blocking; });
  }

  // The capture is broken for it.
  cudaError_t refuse(cudaError_t error);
  // Of a call that may wait for the device, where this thread may make none now.
  cudaError_t unsafe_call();
  // Of a call that asks about the whole device, which no thread may make.
  cudaError_t device_call() { return current_ ? refuse(cudaErrorStreamCaptureUnsupported) : cudaSuccess; }
  // A stream waits for a captured event, and belongs to the capture from now on.
  cudaError_t pull_in(const FakeStream& stream);

  // Of the calling thread.
  static void exchange_mode(cudaStreamCaptureMode& mode);

 private:
  struct Capture {
    const FakeStream* origin = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    std::set<const FakeStream*> streams;
    bool broken = false;
  };
  std::optional<Capture> current_;
};

}  // namespace lockstep::fake_cuda
