// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/cuda/launcher.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/current_device.h"

namespace lockstep::cuda {
namespace {

// Of 256 threads a multiprocessor holds eight blocks.
constexpr std::int64_t kBlocksPerMultiprocessor = 8;

std::vector<const AnyKernel*>& kernels_of_library() {
  static std::vector<const AnyKernel*> all;
  return all;
}

}  // namespace

AnyKernel::AnyKernel(const char* name, const void* function, int threads)
    : name_(name), function_(function), threads_(threads) {
  kernels_of_library().push_back(this);
}

const std::vector<const AnyKernel*>& AnyKernel::all() { return kernels_of_library(); }

Launcher::Launcher(StreamView stream) : stream_(stream) {
  const CurrentDevice current(stream.device);
  check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, stream.device.index),
        "cudaDeviceGetAttribute", stream.device);
  for (const AnyKernel* kernel : AnyKernel::all()) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel->function()), fmt::format("loading the kernel {}", kernel->name()),
          stream.device);
    if (kernel->threads() <= attributes.maxThreadsPerBlock) continue;
    throw DeviceError(
        fmt::format("the kernel {} has {} threads in a block, and {} allows {}; report it with the output of "
                    "'lockstep doctor'",
                    kernel->name(), kernel->threads(), stream.device.str(), attributes.maxThreadsPerBlock));
  }
}

unsigned Launcher::blocks_for(std::int64_t work) const {
  constexpr std::int64_t kMost = 0x7fffffff;
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(work, 1, std::min(kMost, multiprocessors_ * kBlocksPerMultiprocessor)));
}

void Launcher::check_launch(const AnyKernel& kernel, cudaError_t error) const {
  if (error != cudaSuccess) check(error, fmt::format("the kernel {}", kernel.name()), stream_.device);
}

}  // namespace lockstep::cuda
