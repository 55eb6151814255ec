// SPDX-License-Identifier: Apache-2.0
// A training step of LibTorch that a GPU replays: forward and backward are captured into a CUDA graph. The gradients
// are averaged, and the optimizer steps, as in any other step.
//
//   lockstep::libtorch::CapturedStep step(ddp, optimizer, [&](const torch::Tensor& x, const torch::Tensor& y) {
//     return torch::nll_loss(ddp(x), y);
//   });
//   for (auto& batch : *loader) step(batch.data, batch.target);  // zero_grad(), ddp.backward(loss), optimizer.step()
//
// Make it before the first forward, and one for a ddp. A step clears the gradients of ddp's parameters, computes,
// averages, and steps the optimizer. The first `warm_up` steps of one kind of input run eagerly, as if the program had
// written them; then the step is captured once, and replayed for inputs of that kind: their dtypes, shapes and devices,
// and whether the module trains. A replayed step costs the host one launch, the collectives and the optimizer's step.
//
// The price: gradients leave when backward has ended, so no all-reduce runs behind it. It pays where the host is
// slower than the device (small models and batches), and not where the all-reduces are long.
//
// On every rank the collectives of a replayed step are those of an eager one, in the same order and buckets: a rank may
// replay while another runs eagerly. Weight, loss, step note, a stop, NaN and failures are those of an eager step.
//
// `loss_of` makes one forward through ddp and returns the loss. What it does on the host is done while it is captured,
// and not again: numbers that it reads, the places of tensors beside its arguments (parameters and buffers keep their
// memory), and collectives of a group on the CPU.
//
// Runs eagerly, and logs why, once for each reason:
//   - on the CPU, and where the program has no CUDA graphs (see CudaGraph);
//   - inputs of another kind than the captured one, such as a last batch of fewer rows, or of none;
//   - inputs that are not on the group's device, or require a gradient;
//   - a SyncBatchNorm of several ranks that trains, whose statistics are collectives.
// The optimizer is any, and its numbers may change from step to step. FusedSGD, FusedAdam and FusedAdamW launch one to
// three kernels, torch's own some for each parameter.
// Not supported: no_sync() and DdpOptions::reproducible, for each backward is a step; DdpOptions::shard;
// DdpOptions::weigh_outputs, whose factor is a number on the host; a GradScaler; clipping of gradients. In `loss_of`,
// once it is captured: collectives on the device, ddp's set_weight() and record_loss(), .item(), copies to the host,
// and hooks that do such things in backward.
//
// On a device the steps run in a stream of this object's, in order with the caller's current stream. Seeds
// (DdpOptions::seed) are set before each replay.
//
// `Graph`: a StepGraph. Threads: ddp's. Failure: InvalidArgument for the above, and from the constructor if a loss or
// an output of an earlier forward lives; what a capture throws fails the group on every rank, with its text, as a
// backward's exception does.
#pragma once

#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/libtorch/distributed_data_parallel.h"
#include "lockstep/libtorch/step_capture.h"

// The first header is in every LibTorch for GPUs, and in no other.
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && __has_include(<cuda_runtime_api.h>)
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#define LOCKSTEP_HAS_CUDA_GRAPHS 1
static_assert(CUDART_VERSION >= 12040, "with a CUDA before 12.4 LibTorch's CUDAGraph has another size");
#else
#define LOCKSTEP_HAS_CUDA_GRAPHS 0
#endif

namespace lockstep::libtorch {

// LibTorch's own graph, compiled with the program's LibTorch: lockstep's library needs no CUDA. It needs a LibTorch for
// GPUs, 2.6 or newer, and the headers of its CUDA on the include path (cuda_runtime_api.h); else it captures nothing.
// Other threads may use CUDA while it captures.
class CudaGraph final : public StepGraph {
 public:
#if LOCKSTEP_HAS_CUDA_GRAPHS
  static std::string why_not(DeviceId device) {
    return device.kind == DeviceKind::cuda ? "" : "the group is on the CPU, which has no CUDA graphs";
  }
  void capture(std::function<void()> body) override {
    // The graph's memory pool can't use what eager steps have left in the allocator's cache, nor free it.
    c10::cuda::CUDACachingAllocator::emptyCache();
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      body();
    } catch (...) {
      try {
        graph_.capture_end();  // else the stream would stay captured
      } catch (const std::exception&) {
        // The capture is broken, for the reason that `body` has thrown.
      }
      throw;
    }
    graph_.capture_end();
  }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
#else
  static std::string why_not(DeviceId) {
    return "the program was compiled without a LibTorch for GPUs and the headers of its CUDA (cuda_runtime_api.h)";
  }
  void capture(std::function<void()>) override {}
  void replay() override {}
#endif
};

template <typename LossOf, std::derived_from<StepGraph> Graph = CudaGraph>
class CapturedStep {
 public:
  // ddp, its module and the optimizer outlive this object.
  template <typename Net>
  CapturedStep(DistributedDataParallel<Net>& ddp, ::torch::optim::Optimizer& optimizer, LossOf loss_of,
               CapturedStepOptions options = {})
      : loss_of_(std::move(loss_of)),
        capture_(
            ddp, optimizer, Graph::why_not(ddp.group()->device()), [] { return std::make_unique<Graph>(); }, options) {}

  // A whole step. `inputs`: loss_of's arguments, which may change in place behind the call. Returns the loss of this
  // rank's rows, without a graph, in memory of its own.
  template <std::convertible_to<at::Tensor>... Inputs>
  at::Tensor operator()(const Inputs&... inputs) {
    return capture_.run({inputs...}, [this](const std::vector<at::Tensor>& given) {
      return [&]<std::size_t... i>(std::index_sequence<i...>) { return loss_of_(given[i]...); }
      (std::index_sequence_for<Inputs...>{});
    });
  }

  // The number of terms that this rank's loss is the mean of in the next step alone; without it ddp's rows, as in
  // ddp.set_weight(). May differ from step to step.
  void set_weight(std::integral auto weight) { capture_.set_weight(static_cast<std::int64_t>(weight)); }
  // Whether forward and backward of the last step were a replay.
  bool was_replayed() const { return capture_.was_replayed(); }

 private:
  LossOf loss_of_;
  StepCapture capture_;
};

template <typename Net, typename LossOf>
CapturedStep(DistributedDataParallel<Net>&, ::torch::optim::Optimizer&, LossOf, CapturedStepOptions = {})
    -> CapturedStep<LossOf>;

}  // namespace lockstep::libtorch
