// SPDX-License-Identifier: Apache-2.0
// The tape of operations, and backward over it.
//
// Operations (autograd/ops.h) on tensors that require a gradient record themselves on the tape. backward() walks the
// tape from a loss to the leaves, writes each leaf's gradient, and reports, as early as it is true, that a leaf's
// gradient is final. This room knows no ranks.
//
// A gradient has no tape, so there is no backward through a backward (PyTorch's create_graph).
//
// Order: the same tape is always walked in the same order; a leaf is final when the last operation that used it was
//   walked.
// Memory: backward frees the tape and the saved values while it walks. A tape that is dropped is freed with its loss.
// Threads: one thread at a time records and walks a tape; different tapes are independent.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct BackwardOptions {
  // Whether contributions add to an existing gradient. False: a leaf's first contribution of this walk overwrites the
  // gradient, later ones add; leaves that the loss does not depend on keep theirs.
  bool accumulate = true;
  // Whether the walk may write gradients that a live DistributedDataParallel sums over the ranks.
  bool into_held = false;
  // Whether the tape is kept, so that it can be walked again.
  bool retain_graph = false;
  // A function that is called on the calling thread, once per leaf the loss depends on, when the leaf's gradient is
  // final. An exception of it ends the walk, which then frees the tape too.
  std::function<void(const Tensor& leaf)> on_leaf_ready = {};
};

// Adds seed * d(loss)/d(leaf) to the gradient of every leaf. With the batch's weight as the seed, the gradients of a
// mean loss add up over micro-batches and ranks as sums.
//
// If the loss depends on the parameters of a live DistributedDataParallel, the call is that object's backward(loss),
// which sums over the ranks; it weights the loss by itself and takes no seed or options.
//
// InvalidArgument, with no gradient changed, if the loss has not exactly one element, depends on no leaf, or depends on
// the parameters of several DistributedDataParallels (call backward(loss) of the one that is meant), or if an earlier
// backward freed its tape.
LOCKSTEP_API void backward(const Tensor& loss, float seed = 1.0f, const BackwardOptions& options = {});

// The leaves in the order in which backward(loss) will call on_leaf_ready, read from the tape without computing. Throws
// as backward().
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

// Whether this thread records.
LOCKSTEP_API bool grad_enabled();

}  // namespace lockstep
