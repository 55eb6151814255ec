// SPDX-License-Identifier: Apache-2.0
// TensorWork is a handle to a collective on torch tensors that is in progress.
//
//   auto work = lockstep::libtorch::all_gather_async(rows, group);
//   ...                                                          // compute what does not need `all`
//   at::Tensor all = work.wait();
//
// A TensorWork keeps alive the tensors that its collective reads and writes. After wait() the program may read the
// tensors that the collective writes, and write the tensors that the collective reads.
//
// Threads: only the thread that uses the group may use a TensorWork.
// Failure: done(), wait() and wait_on() throw the group's errors.
// End: the destructor waits for the collective if wait() was not called. If the collective fails while the destructor
//   waits, the destructor logs the error, and the group's next call throws the error again. During stack unwinding the
//   destructor doesn't wait; the tensors of an unfinished collective then stay allocated until the process ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/stream.h"

namespace lockstep::libtorch {

class LOCKSTEP_API TensorWork {
 public:
  // Tensors holds the tensors of a started collective. The collective reads `read` and fills `written`, and wait()
  // copies `written` into `result` if `result` is another tensor. `started_in` is the stream in which the collective
  // was started; the collective waits for the earlier work in this stream.
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
  // Returns the collective's result. For an in-place operation wait() returns the tensor that the operation was given.
  // On a rank that gets no result, wait() returns an undefined tensor. On the CPU wait() blocks until the collective is
  // done. On a GPU wait() makes torch's current stream wait for the collective, and does not block the host.
  at::Tensor wait();
  // Makes later work in `stream` start after the collective. On the CPU wait_on() blocks like wait().
  void wait_on(StreamView stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::libtorch
