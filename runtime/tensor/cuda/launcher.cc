// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/cuda/launcher.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/current_device.h"

namespace lockstep::cuda {
namespace {

constexpr std::int64_t kThreadsPerMultiprocessor = 2048;
constexpr std::int64_t kWarpThreads = 32;

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
        fmt::format("the kernel {} has {} threads in a block, but {} allows only {}; report it with the output of "
                    "'lockstep doctor'",
                    kernel->name(), kernel->threads(), stream.device.str(), attributes.maxThreadsPerBlock));
  }
}

int Launcher::threads_for(const AnyKernel& kernel, const Work& work) {
  const std::int64_t warps = (std::min<std::int64_t>(work.width, kernel.threads()) + kWarpThreads - 1) / kWarpThreads;
  return static_cast<int>(std::max<std::int64_t>(warps, 1) * kWarpThreads);
}

unsigned Launcher::blocks_for(const Work& work, int threads) const {
  constexpr std::int64_t kMost = 0x7fffffff;
  const std::int64_t at_once = multiprocessors_ * (kThreadsPerMultiprocessor / threads);
  return static_cast<unsigned>(std::clamp<std::int64_t>(work.blocks, 1, std::min(kMost, at_once)));
}

void Launcher::check_launch(const AnyKernel& kernel, cudaError_t error) const {
  if (error != cudaSuccess) check(error, fmt::format("the kernel {}", kernel.name()), stream_.device);
}

}  // namespace lockstep::cuda
