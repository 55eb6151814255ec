// SPDX-License-Identifier: Apache-2.0
// How kernels are launched, all of them: with a name for errors, within the limits of the device, and loaded before.
//
// Threads: one at a time per launcher.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/device/stream.h"

namespace lockstep::cuda {

// A kernel of this library; launch.cuh has those with types. They live as long as the library.
class AnyKernel {
 public:
  // Most threads of a block: whole warps. `name` is a literal.
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

// Blocks that a launch is for: as many run as fill the device, which then take turns, and at least one.
struct Work {
  Work(std::int64_t number) : blocks(number) {}  // NOLINT(google-explicit-constructor)
  Work(std::int64_t number, std::int64_t wide) : blocks(number), width(wide) {}

  std::int64_t blocks;
  // The elements that the threads of a block share, if they may be few: a narrow row leaves most of 256 threads with
  // nothing to do.
  std::int64_t width = std::numeric_limits<std::int64_t>::max();
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
  // Whole warps, up to the kernel's threads: by the width alone, as the order of sums is.
  static int threads_for(const AnyKernel& kernel, const Work& work);
  unsigned blocks_for(const Work& work, int threads) const;
  void check_launch(const AnyKernel& kernel, cudaError_t error) const;
  cudaStream_t handle() const { return static_cast<cudaStream_t>(stream_.handle); }

 private:
  StreamView stream_;
  int multiprocessors_ = 0;
};

}  // namespace lockstep::cuda
