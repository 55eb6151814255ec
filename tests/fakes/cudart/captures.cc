// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/captures.h"

#include <utility>

namespace lockstep::fake_cuda {
namespace {

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

}  // namespace

void Captures::exchange_mode(cudaStreamCaptureMode& mode) { std::swap(mode, mode_of_thread); }

cudaError_t Captures::begin(const FakeStream& stream, cudaStreamCaptureMode mode) {
  if (current_) return cudaErrorIllegalState;
  current_ = Capture{&stream, mode, std::this_thread::get_id(), {&stream}, false};
  return cudaSuccess;
}

cudaError_t Captures::end(const FakeStream& stream) {
  if (!current_ || current_->origin != &stream) return cudaErrorIllegalState;
  const Capture ended = *std::exchange(current_, std::nullopt);
  if (ended.broken) return cudaErrorStreamCaptureInvalidated;
  return ended.streams.size() > 1 ? cudaErrorStreamCaptureUnjoined : cudaSuccess;
}

cudaError_t Captures::refuse(cudaError_t error) {
  if (current_) current_->broken = true;
  return error;
}

cudaError_t Captures::unsafe_call() {
  if (!current_ || mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const bool is_own = current_->thread == std::this_thread::get_id();
  const bool forbids = current_->mode == cudaStreamCaptureModeGlobal
                           ? is_own || mode_of_thread == cudaStreamCaptureModeGlobal
                           : current_->mode == cudaStreamCaptureModeThreadLocal && is_own;
  return forbids ? refuse(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t Captures::pull_in(const FakeStream& stream) {
  if (!current_) return cudaErrorCapturedEvent;
  current_->streams.insert(&stream);
  return cudaSuccess;
}

}  // namespace lockstep::fake_cuda
