// SPDX-License-Identifier: Apache-2.0
// Autocast is mixed precision for a scope, as Python's torch.autocast; LibTorch's C++ has only the switches.
//
//   at::Tensor loss;
//   {
//     const lockstep::libtorch::Autocast scope(at::kCUDA, at::kBFloat16);
//     loss = torch::nn::functional::cross_entropy(ddp(batch.data), batch.target);
//   }
//   loss.backward();  // outside: each operator's backward computes in the dtype of its forward
//
// Inside, matrix products, convolutions and attention compute in `dtype`; losses, norms and sums of float32 stay in
// float32. Parameters and gradients keep their dtype. float16 needs a GradScaler, bfloat16 does not.
//
// Nesting: an inner scope replaces the outer one's settings until it ends.
// Casts: the cast of a parameter is kept until the outermost scope ends, so a parameter that is used twice is cast
//   once. A forward through a DistributedDataParallel begins without casts, and so does the work after its backward or
//   after the step of one of lockstep's optimizers: a scope may surround the loop of a training, with its evaluations.
//   Casts become stale, as in Python, if a program writes parameters elsewhere within a scope, or trains on a module's
//   own forward after an evaluation.
// Exceptions: an exception that unwinds a scope restores the settings.
// Threads: settings belong to the thread that made the scope, which also ends it. A scope can't be moved or allocated.
// Failure: InvalidArgument for a device or a dtype that this LibTorch has no autocast for; the settings are unchanged.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstddef>

#include "lockstep/base/api.h"

namespace lockstep::libtorch {

struct AutocastOptions {
  bool enabled = true;        // false: computes in the tensors' own dtypes, also within an outer scope
  bool cache_enabled = true;  // false: a parameter is cast at each use
};

class LOCKSTEP_API Autocast {
 public:
  // Begins a scope. `dtype` is at::kBFloat16 or at::kHalf.
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
