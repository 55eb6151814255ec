// SPDX-License-Identifier: Apache-2.0
// The tape of operations, and backward over the tape.
//
// Operations (autograd/ops.h) on tensors that require a gradient record themselves on the tape. backward() walks the
// tape from a loss to the leaves and writes each leaf's gradient. As soon as a leaf's gradient is final, backward()
// reports the leaf. The tape knows no ranks.
//
// A gradient has no tape, so there is no backward through a backward (PyTorch's create_graph).
//
// Order: backward walks the same tape always in the same order; a leaf is final after the walk over the last operation
//   that used the leaf.
// Memory: backward frees the tape and the saved values during the walk. A tape that is dropped is freed with its loss.
// Threads: one thread at a time records and walks a tape; different tapes are independent.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct BackwardOptions {
  // Whether contributions add to an existing gradient. If false, a leaf's first contribution of this walk overwrites
  // the gradient, and later contributions add; leaves that the loss does not depend on keep their gradients.
  bool accumulate = true;
  // Whether the walk may write gradients that a live DistributedDataParallel sums over the ranks.
  bool into_held = false;
  // Whether the tape is kept after the walk, so that backward can walk the tape again.
  bool retain_graph = false;
  // The function that is called on the calling thread, once per leaf that the loss depends on, when the leaf's gradient
  // is final. An exception of the function ends the walk, which then frees the tape too.
  std::function<void(const Tensor& leaf)> on_leaf_ready = {};
};

// Adds seed * d(loss)/d(leaf) to the gradient of every leaf. With the batch's weight as the seed, the gradients of a
// mean loss add up over micro-batches and ranks as sums.
//
// If the loss depends on the parameters of a live DistributedDataParallel, the call runs that object's
// backward(loss), which sums over the ranks. The DistributedDataParallel weights the loss by itself, so the call then
// takes no seed or options.
//
// Throws InvalidArgument, with no gradient changed, if the loss has not exactly one element, depends on no leaf, or
// depends on the parameters of several DistributedDataParallels (call backward(loss) of the intended
// DistributedDataParallel), or if an earlier backward freed the tape of the loss.
LOCKSTEP_API void backward(const Tensor& loss, float seed = 1.0f, const BackwardOptions& options = {});

// Returns the leaves in the order in which backward(loss) will call on_leaf_ready, read from the tape without
// computing. Throws what backward() throws.
LOCKSTEP_API std::vector<Tensor> ready_order(const Tensor& loss);

// While a NoGrad lives, operations on this thread record nothing: for evaluation, and updates of weights. Guards nest.
// The flag belongs to the thread: loader threads and other ranks in this process are not affected.
class LOCKSTEP_API NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

// Returns whether operations on this thread record themselves.
LOCKSTEP_API bool grad_enabled();

}  // namespace lockstep
