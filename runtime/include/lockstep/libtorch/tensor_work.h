// SPDX-License-Identifier: Apache-2.0
// TensorWork is a collective on torch tensors in progress.
//
//   auto work = lockstep::libtorch::all_gather_async(rows, group);
//   ...                                                          // compute what does not need `all`
//   at::Tensor all = work.wait();
//
// A TensorWork keeps the tensors that the collective reads and writes alive. After wait() the program may read the
// tensors that the collective writes, and write the tensors that the collective reads.
//
// Threads: the group's thread uses a TensorWork.
// Failure: done(), wait() and wait_on() throw the group's errors.
// End: the destructor of a handle that was not waited for waits, and logs a failure, which the group's next call throws
//   again. During unwinding the destructor doesn't wait: a collective that is not done keeps its tensors for the rest
//   of the process.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/stream.h"

namespace lockstep::libtorch {

class LOCKSTEP_API TensorWork {
 public:
  // The tensors of a started collective. `work` fills `written` from `read`, and wait() copies `written` into `result`
  // if `result` is another tensor. `started_in` is the stream that the collective follows.
  struct Tensors {
    at::Tensor read = {};
    at::Tensor written = {};
    at::Tensor result = {};
  };
  TensorWork(std::shared_ptr<ProcessGroup> group, StreamView started_in, Work work, Tensors tensors);
  ~TensorWork();
  TensorWork(TensorWork&&) noexcept;
  TensorWork& operator=(TensorWork&&) noexcept;

  // Returns true once wait() would not block. Advances pending collectives.
  bool done() const;
  // Returns the result: the tensor of an in-place operation; an undefined tensor on a rank that gets no result. On the
  // CPU wait() blocks until the collective is done. On a GPU torch's current stream waits, and the host does not.
  at::Tensor wait();
  // Makes later work in `stream` start after the collective. On the CPU wait_on() blocks like wait().
  void wait_on(StreamView stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::libtorch
