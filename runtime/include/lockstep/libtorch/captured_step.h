// SPDX-License-Identifier: Apache-2.0
// CapturedStep is a training step of LibTorch whose forward and backward a GPU replays as a CUDA graph.
//
//   lockstep::libtorch::CapturedStep step(ddp, optimizer, [&](const torch::Tensor& x, const torch::Tensor& y) {
//     return torch::nll_loss(ddp(x), y);
//   });
//   for (auto& batch : *loader) step(batch.data, batch.target);  // zero_grad(), ddp.backward(loss), optimizer.step()
//
// - Make one per ddp, before its first forward.
// - Collective: each call, as an eager step. A replayed step has the collectives of an eager one, in the same order and
//   buckets, so one rank may replay while another runs eagerly.
// - Threads: ddp's.
// - Failure: InvalidArgument for what is not supported (see operator()). An exception in a capture fails the group on
//   every rank, with its text, as an exception in backward does.
//
// It pays if the host is slower than the device (small models and batches): a replayed step costs the host one
// launch, the collectives and the optimizer's step. Gradients leave when backward has ended, so no all-reduce runs
// during it. docs/LIBTORCH_REFERENCE.md, "Captured steps", is the guide;
// docs/adr/0088-computing-is-captured-collectives-are-not.md says why.
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

// The first of these headers is in every LibTorch for GPUs, and in no other.
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && __has_include(<cuda_runtime_api.h>)
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#define LOCKSTEP_HAS_CUDA_GRAPHS 1
static_assert(CUDART_VERSION >= 12040, "with a CUDA before 12.4 LibTorch's CUDAGraph has another size");
#else
#define LOCKSTEP_HAS_CUDA_GRAPHS 0
#endif

namespace lockstep::libtorch {

// LibTorch's own graph, compiled with the program's LibTorch, so that lockstep's library needs no CUDA. It needs a
// LibTorch for GPUs, 2.6 or newer, and the headers of its CUDA on the include path (cuda_runtime_api.h); otherwise it
// captures nothing. Other threads may use CUDA while it captures.
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
        graph_.capture_end();  // otherwise the stream would stay captured
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

// A step of `ddp` with the graph class `Graph`, a StepGraph.
//
// The first CapturedStepOptions::warm_up steps of a kind of input run eagerly, as if the program had written them. The
// step is then captured once, and replayed for inputs of that kind: the same dtypes, shapes and devices, and the same
// modules in training. On a device the steps run in a stream of this object, in order with the caller's current stream.
// Weight, loss, step note, a stop, NaN and failures are as in an eager step; DdpOptions::seed seeds before each replay.
template <typename LossOf, std::derived_from<StepGraph> Graph = CudaGraph>
class CapturedStep {
 public:
  // `ddp`, its module and the optimizer outlive this object. InvalidArgument if a loss or an output of an earlier
  // forward is alive.
  //
  // `loss_of` runs one forward through ddp and returns the loss. A replay does not repeat its work on the host: reading
  // numbers, choosing tensors besides its arguments (parameters and buffers keep their memory), and collectives of a
  // group on the CPU. The optimizer is any, and its numbers may change from step to step. FusedSGD, FusedAdam and
  // FusedAdamW launch one to three kernels, torch's own optimizers some for each parameter.
  template <typename Net>
  CapturedStep(DistributedDataParallel<Net>& ddp, ::torch::optim::Optimizer& optimizer, LossOf loss_of,
               CapturedStepOptions options = {})
      : loss_of_(std::move(loss_of)),
        capture_(
            ddp, optimizer, Graph::why_not(ddp.group()->device()), [] { return std::make_unique<Graph>(); }, options) {}

  // Runs a whole step: clears the gradients of ddp's parameters, computes, averages, and steps the optimizer. `inputs`
  // are loss_of's arguments; the program may change them in place after the call. Returns the loss of this rank's rows,
  // without autograd's graph, in memory of its own.
  //
  // The step runs eagerly, and logs each reason once,
  //
  // - on the CPU, and where the program has no CUDA graphs (see CudaGraph);
  // - for inputs of another kind than the captured one, such as a last batch of fewer rows, or of none;
  // - for inputs that are not on the group's device, or require a gradient;
  // - with a SyncBatchNorm of several ranks that trains, because its statistics are collectives.
  //
  // Not supported:
  //
  // - no_sync() and DdpOptions::reproducible, because each backward is a step; DdpOptions::shard;
  //   DdpOptions::weight_outputs, whose factor is a number on the host: InvalidArgument;
  // - a GradScaler, and clipping of gradients: a step has no place for them;
  // - in `loss_of`, once it is captured: collectives on the device, ddp's set_weight() and record_loss(), .item(),
  //   copies to the host, and hooks that do such things in backward.
  template <std::convertible_to<at::Tensor>... Inputs>
  at::Tensor operator()(const Inputs&... inputs) {
    return capture_.run({inputs...}, [this](const std::vector<at::Tensor>& given) {
      return [&]<std::size_t... i>(std::index_sequence<i...>) { return loss_of_(given[i]...); }
      (std::index_sequence_for<Inputs...>{});
    });
  }

  // Sets the number of terms that this rank's loss is the mean of, only for the next step. Without it the weight is the
  // number of ddp's rows, as in ddp.set_weight(). It may differ from step to step.
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
