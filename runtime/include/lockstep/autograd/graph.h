// SPDX-License-Identifier: Apache-2.0
// Defines backward(), which computes gradients by walking the tape of recorded operations.
//
// Operations (autograd/ops.h) on tensors that require a gradient record themselves on the tape. backward() walks the
// tape from a loss to the leaves and writes each leaf's gradient. As soon as a leaf's gradient is final, backward()
// calls BackwardOptions::on_leaf_ready. The tape knows no ranks.
//
// backward() records nothing on a tape, so gradients of gradients (PyTorch's create_graph) can't be computed.
//
// Order: backward() always walks a given tape in one fixed order; a leaf's gradient is final once backward() has walked
//   over the last operation that used the leaf.
// Memory: backward() frees the tape, and the values that the operations saved, during its walk. If backward() is never
//   called, the tape is freed with the tensor of the loss.
// Threads: only one thread at a time may record or walk a tape; different tapes are independent of each other.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct BackwardOptions {
  // Whether backward() adds to a leaf's existing gradient. If `accumulate` is false, the new gradient of a leaf
  // replaces the leaf's old gradient. Leaves that the loss does not depend on keep their gradients.
  bool accumulate = true;
  // Whether backward() may write gradients that a live DistributedDataParallel sums over the ranks.
  bool into_held = false;
  // Whether the tape is kept after backward(), so that a second backward() can walk the tape again.
  bool retain_graph = false;
  // The function that backward() calls on the calling thread when a leaf's gradient is final, once for each leaf that
  // the loss depends on. If on_leaf_ready throws, backward() ends its walk and frees the tape.
  std::function<void(const Tensor& leaf)> on_leaf_ready = {};
};

// Adds seed * d(loss)/d(leaf) to the gradient of every leaf. If `seed` is the weight of a micro-batch, such as its
// number of rows, the gradients of a mean loss become sums, which add up over micro-batches and ranks.
//
// If the loss depends on the parameters of a live DistributedDataParallel, backward() calls the
// DistributedDataParallel's own backward(loss), which sums the gradients over the ranks. For the loss of a
// DistributedDataParallel, backward() accepts no seed and no options, because the DistributedDataParallel weights
// the loss.
//
// Throws InvalidArgument, before any gradient has changed, if the loss does not have exactly one element or depends on
// no leaf, or if an earlier backward() has freed the tape of the loss. Also throws InvalidArgument if the loss depends
// on the parameters of several DistributedDataParallels; the program must then call the member function backward(loss)
// of the intended DistributedDataParallel.
LOCKSTEP_API void backward(const Tensor& loss, float seed = 1.0f, const BackwardOptions& options = {});

// Returns the leaves in the order in which backward(loss) will call on_leaf_ready. Reads the order of the leaves from
// the tape and computes no gradient. Throws what backward() throws.
LOCKSTEP_API std::vector<Tensor> ready_order(const Tensor& loss);

// NoGrad is a guard for evaluation and for updates of weights: while a NoGrad lives, operations on the thread that made
// the NoGrad are not recorded on the tape. Guards nest. A NoGrad does not affect other threads: loader threads, and the
// threads of other ranks in the process, still record their operations.
class LOCKSTEP_API NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

// Returns whether operations on this thread are recorded on the tape.
LOCKSTEP_API bool grad_enabled();

}  // namespace lockstep
