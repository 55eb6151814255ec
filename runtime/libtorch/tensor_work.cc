// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/tensor_work.h"

#include <c10/core/GradMode.h>

#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/libtorch/torch_stream.h"
#include "runtime/base/logging.h"
#include "runtime/base/unwind_guard.h"

namespace lockstep::libtorch {

struct TensorWork::State {
  std::shared_ptr<ProcessGroup> group;
  StreamView started_in;
  Work work;
  Tensors tensors;
  UnwindGuard unwinding = {};
  bool is_waited = false;  // wait() was called, whether or not it threw
};

namespace {

// The backend may still read and write them.
void keep_for_good(TensorWork::Tensors tensors) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<TensorWork::Tensors>();  // leaked: it may be used after main
  const std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::move(tensors));
}

bool is_done(const Work& work) noexcept {
  try {
    return work.done();
  } catch (const std::exception&) {  // a failed group touches no buffer any more
    return true;
  }
}

}  // namespace

TensorWork::TensorWork(std::shared_ptr<ProcessGroup> group, StreamView started_in, Work work, Tensors tensors)
    : state_(std::make_unique<State>(State{std::move(group), started_in, std::move(work), std::move(tensors)})) {}

TensorWork::TensorWork(TensorWork&&) noexcept = default;

TensorWork& TensorWork::operator=(TensorWork&& other) noexcept {
  const TensorWork ended(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

TensorWork::~TensorWork() {
  if (!state_ || state_->is_waited) return;
  try {
    if (!state_->unwinding.is_unwinding()) {
      wait();
    } else if (!is_done(state_->work)) {
      keep_for_good(std::move(state_->tensors));
    }
  } catch (const std::exception& error) {
    log_warn(
        "LibTorch: a collective failed, and the program destroyed its Work without wait(): {}; call wait() on each "
        "Work to see its failure",
        error.what());
  }
}

bool TensorWork::done() const { return state_->work.done(); }

at::Tensor TensorWork::wait() {
  state_->is_waited = true;
  const StreamView here = current_stream(state_->group->device());
  const StreamView there = state_->started_in;
  if (here.device.kind == DeviceKind::cpu) {
    state_->work.wait();
  } else {
    state_->work.wait_on(here);
  }
  Tensors& tensors = state_->tensors;
  if (tensors.result.defined() && !tensors.result.is_same(tensors.written)) {
    const at::NoGradGuard no_grad;
    tensors.result.copy_(tensors.written);
  }
  // LibTorch gives released memory to the next work in the stream that allocated it.
  put_in_order(here, there);
  tensors.read = at::Tensor();
  tensors.written = tensors.result;
  return tensors.result;
}

void TensorWork::wait_on(StreamView stream) {
  wait();
  put_in_order(current_stream(state_->group->device()), stream);
}

}  // namespace lockstep::libtorch
