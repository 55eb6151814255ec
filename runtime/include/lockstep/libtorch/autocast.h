// SPDX-License-Identifier: Apache-2.0
// Autocast turns on mixed precision for a scope, like Python's torch.autocast. LibTorch's C++ API has no class for such
// a scope, but only functions that switch mixed precision on and off.
//
//   at::Tensor loss;
//   {
//     const lockstep::libtorch::Autocast scope(at::kCUDA, at::kBFloat16);
//     loss = torch::nn::functional::cross_entropy(ddp(batch.data), batch.target);
//   }
//   loss.backward();  // outside: each operator's backward computes in the dtype of its forward
//
// Within an Autocast scope, matrix products, convolutions and attention compute in `dtype`; losses, norms and sums of
// float32 stay in float32. Parameters and gradients keep their dtype. Training with float16 needs a GradScaler;
// training with bfloat16 needs no GradScaler.
//
// Nesting: an inner scope replaces the settings of the outer scope until the inner scope ends.
// Exceptions: if an exception unwinds a scope, the scope's destructor restores the earlier settings.
// Threads: a scope's settings affect only the thread that made the scope; the same thread must end the scope. An
//   Autocast object can't be moved, and can't be allocated with new.
// Failure: the constructor throws InvalidArgument, and leaves the settings unchanged, if this LibTorch has no autocast
//   for the device or dtype.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstddef>

#include "lockstep/base/api.h"

namespace lockstep::libtorch {

struct AutocastOptions {
  bool enabled = true;        // false: operators compute in the tensors' own dtypes, also within an outer scope
  bool cache_enabled = true;  // false: a parameter is cast at each use
};

// While an Autocast object lives, mixed precision is on for the object's device, on the thread that made the object;
// with AutocastOptions::enabled set to false, mixed precision is off.
//
// Casts: the cast copy of a parameter is kept until the outermost scope ends, so a parameter that is used twice is cast
//   once. The library drops the kept casts before each forward through a DistributedDataParallel, after each backward
//   of a DistributedDataParallel, and after each step of one of lockstep's optimizers. Because each training step drops
//   the kept casts, a scope may surround a whole training loop with its evaluations. As in Python, kept casts become
//   stale if, within a scope, a program writes parameters outside a training step, or trains after an evaluation
//   through the module's own forward.
class LOCKSTEP_API Autocast {
 public:
  // Begins a scope in which operators on `device` compute in `dtype`, which is at::kBFloat16 or at::kHalf.
  Autocast(c10::DeviceType device, c10::ScalarType dtype, const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  static void* operator new(std::size_t) = delete;
  static void* operator new[](std::size_t) = delete;

 private:
  const c10::DeviceType device_;
  const bool was_enabled_;
  const c10::ScalarType previous_dtype_;
  const bool was_cache_enabled_;
};

}  // namespace lockstep::libtorch
