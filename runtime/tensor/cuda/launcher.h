// SPDX-License-Identifier: Apache-2.0
// How kernels are launched, all of them: with a name for errors, within the limits of the device, and loaded before.
//
// Threads: one at a time per launcher.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "lockstep/device/stream.h"

namespace lockstep::cuda {

// A kernel of this library; launch.cuh has those with types. They live as long as the library.
class AnyKernel {
 public:
  // Threads of a block: whole warps. `name` is a literal.
  AnyKernel(const char* name, const void* function, int threads);
  AnyKernel(const AnyKernel&) = delete;
  AnyKernel& operator=(const AnyKernel&) = delete;

  // All there are, once the library has been loaded.
  static const std::vector<const AnyKernel*>& all();

  const char* name() const { return name_; }
  const void* function() const { return function_; }
  int threads() const { return threads_; }

 protected:
  ~AnyKernel() = default;

 private:
  const char* name_;
  const void* function_;
  int threads_;
};

class Launcher {
 public:
  // Loads all kernels on the device, which the first launch of each would do otherwise, and wait for what the device is
  // at while it does (CUDA C++ Programming Guide, lazy loading): with a collective under way on the device and another
  // rank waiting for what comes behind the launch, for ever. Throws DeviceError: a kernel that has no code for this
  // device, or one that can't have its threads there.
  explicit Launcher(StreamView stream);

  StreamView stream() const { return stream_; }

 protected:
  // Blocks for `work` of them, where a block takes several as its turn comes: what fills the device and no more.
  unsigned blocks_for(std::int64_t work) const;
  void check_launch(const AnyKernel& kernel, cudaError_t error) const;
  cudaStream_t handle() const { return static_cast<cudaStream_t>(stream_.handle); }

 private:
  StreamView stream_;
  int multiprocessors_ = 0;
};

}  // namespace lockstep::cuda
