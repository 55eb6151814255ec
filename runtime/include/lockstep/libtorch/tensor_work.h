// SPDX-License-Identifier: Apache-2.0
// A collective on torch tensors in progress.
//
//   auto work = lockstep::libtorch::all_gather_async(rows, group);
//   ...                                                          // compute what does not need it
//   at::Tensor all = work.wait();
//
// Holds the tensors that the collective reads and writes: the caller need not. Tensors that it writes may be read, and
// tensors that it reads may be written, behind wait().
//
// Threads: the group's. Failure: done(), wait() and wait_on() throw the group's errors.
// End: a handle that is destroyed before it was waited for waits then, and logs a failure, which the group's next call
//   throws again. During unwinding it doesn't wait: a collective that is not done keeps its tensors for the rest of the
//   process.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/stream.h"

namespace lockstep::libtorch {

class LOCKSTEP_API TensorWork {
 public:
  // The tensors of started collectives: `work` fills `written` from `read`, and `result`, where it has another memory,
  // is filled from `written` at wait(). `started_in`: the stream that the collective follows.
  struct Tensors {
    at::Tensor read = {};
    at::Tensor written = {};
    at::Tensor result = {};
  };
  TensorWork(std::shared_ptr<ProcessGroup> group, StreamView started_in, Work work, Tensors tensors);
  ~TensorWork();
  TensorWork(TensorWork&&) noexcept;
  TensorWork& operator=(TensorWork&&) noexcept;

  // True once wait() would not block. Gives pending work a push.
  bool done() const;
  // The result: of an operation in place its tensor; undefined where this rank gets none. On the CPU blocks until the
  // collective is done. On a GPU torch's current stream waits, and the host does not.
  at::Tensor wait();
  // Work put into `stream` from now on comes after the collective. On the CPU this is wait().
  void wait_on(StreamView stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::libtorch
