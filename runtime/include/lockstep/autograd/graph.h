// SPDX-License-Identifier: Apache-2.0
// The tape and the way back.
//
// Operations (autograd/ops.h) on tensors that require a gradient record what they did. backward() walks that tape from
// a loss to the leaves, writes each leaf's gradient where Tensor::bind_grad said, and tells, as early as it is true,
// that a leaf's gradient is final. Knows nothing of ranks.
//
// A gradient is numbers: it has no tape, and there is no backward through a backward (PyTorch's create_graph).
//
// Order: of one tape always the same; a leaf is final when the last operation that used it was walked.
// Memory: the tape and what it saved are freed while backward walks. A tape that is dropped is freed with its loss.
// Threads: a tape is recorded and walked by one thread at a time; different tapes are independent.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct BackwardOptions {
  // False: a leaf's first contribution of this walk overwrites what its gradient held, later ones add (leaves that the
  // loss does not depend on are left alone). True: all add to the gradient that is there, if there is one.
  bool accumulate = true;
  // True lets the walk write gradients that are held (Tensor::hold_grad), as those of a live DistributedDataParallel.
  bool into_held = false;
  // True keeps the tape, so that it can be walked again.
  bool retain_graph = false;
  // Called on the calling thread, once per leaf the loss depends on, when its gradient is final. An exception of it
  // ends the walk; the tape is freed then too.
  std::function<void(const Tensor& leaf)> on_leaf_ready = {};
};

// Adds seed * d(loss)/d(leaf) to the gradient of every leaf. With the batch's weight as the seed, the gradients of a
// mean loss add up over micro-batches and ranks as sums.
// Of a loss that depends on the parameters of a live DistributedDataParallel this is its backward(loss), which sums
// over the ranks; it weighs the loss by itself and takes no seed or options. InvalidArgument if the loss has not
// exactly one element, depends on no leaf, or on the parameters of several DistributedDataParallels (call the
// backward(loss) of the one that is meant), or its tape was freed by an earlier backward; no gradient was touched then.
LOCKSTEP_API void backward(const Tensor& loss, float seed = 1.0f, const BackwardOptions& options = {});

// The leaves in the order in which backward(loss) will call on_leaf_ready. Read off the tape, nothing is computed.
// Errors as backward().
LOCKSTEP_API std::vector<Tensor> ready_order(const Tensor& loss);

// While one lives, operations on this thread record nothing: for evaluation, and updates of weights. Guards nest.
// (A flag per thread: loader threads and other worlds in this process are not concerned.)
class LOCKSTEP_API NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

// Whether this thread records.
LOCKSTEP_API bool grad_enabled();

}  // namespace lockstep
