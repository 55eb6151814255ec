// SPDX-License-Identifier: Apache-2.0
// CapturedStep is a training step of LibTorch whose forward and backward a GPU replays as a CUDA graph.
//
//   lockstep::libtorch::CapturedStep step(ddp, optimizer, [&](const torch::Tensor& x, const torch::Tensor& y) {
//     return torch::nll_loss(ddp(x), y);
//   });
//   for (auto& batch : *loader) step(batch.data, batch.target);  // zero_grad(), ddp.backward(loss), optimizer.step()
//
// - A program makes one CapturedStep per ddp, before the ddp's first forward.
// - Collective: each call is collective, like an eager step. A replayed step runs the collectives of an eager step, in
//   equal order and buckets, so one rank may replay while another rank runs eagerly.
// - Threads: a CapturedStep belongs to the threads of its ddp.
// - Failure: calls throw InvalidArgument for what is not supported (see operator()). An exception in a capture fails
//   the group on every rank, with the exception's text, as an exception in backward does.
//
// A CapturedStep pays if the host is slower than the device (small models and batches): a replayed step costs the host
// one launch, the collectives and the optimizer's step. Gradients are sent after backward has ended, so no all-reduce
// overlaps backward. The guide is docs/LIBTORCH_REFERENCE.md, "Captured steps";
// docs/adr/0088-computing-is-captured-collectives-are-not.md gives the reasons.
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

// Every LibTorch for GPUs contains the first of these two headers; a LibTorch for CPUs lacks the header.
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && __has_include(<cuda_runtime_api.h>)
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#define LOCKSTEP_HAS_CUDA_GRAPHS 1
static_assert(CUDART_VERSION >= 12040, "with a CUDA before 12.4 LibTorch's CUDAGraph has another size");
#else
#define LOCKSTEP_HAS_CUDA_GRAPHS 0
#endif

namespace lockstep::libtorch {

// CudaGraph wraps LibTorch's own CUDA graph. The class is compiled with the program's LibTorch, so lockstep's library
// needs no CUDA. CudaGraph needs a LibTorch for GPUs, 2.6 or newer, and the headers of its CUDA on the include path
// (cuda_runtime_api.h); without these CudaGraph captures nothing. Other threads may use CUDA during a capture.
class CudaGraph final : public StepGraph {
 public:
#if LOCKSTEP_HAS_CUDA_GRAPHS
  static std::string why_not(DeviceId device) {
    return device.kind == DeviceKind::cuda ? "" : "the group is on the CPU, which has no CUDA graphs";
  }
  void capture(std::function<void()> body) override {
    // The graph's memory pool can neither use nor free the memory that eager steps have left in the allocator's cache.
    c10::cuda::CUDACachingAllocator::emptyCache();
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      body();
    } catch (...) {
      try {
        graph_.capture_end();  // without this call the stream would stay captured
      } catch (const std::exception&) {
        // The capture is broken because `body` has thrown; the exception of `body` follows below.
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

// CapturedStep runs training steps of `ddp`, and captures them with the graph class `Graph`, a StepGraph.
//
// The first CapturedStepOptions::warm_up steps of a kind of input run eagerly, as if the program had written them. The
// next step is captured once, and then replayed for inputs of its kind: inputs with equal dtypes, shapes and devices,
// while the same modules are in training. On a device the steps run in a stream of this object, in order with the
// caller's current stream. Weight, loss, step note, stop, NaN and failures work as in an eager step. With
// DdpOptions::seed the generators are seeded before each replay.
template <typename LossOf, std::derived_from<StepGraph> Graph = CudaGraph>
class CapturedStep {
 public:
  // Makes a step of `ddp` and `optimizer`; both, and ddp's module, outlive this object. Throws InvalidArgument if a
  // loss or an output of an earlier forward is alive.
  //
  // `loss_of` runs one forward through ddp and returns the loss. A replay does not repeat the host's work in
  // `loss_of`: reading numbers, choosing tensors besides its arguments (parameters and buffers keep their memory), and
  // collectives of a group on the CPU. `optimizer` may be any optimizer, and its numbers may change from step to step.
  // FusedSGD, FusedAdam and FusedAdamW launch one to three kernels per step; torch's own optimizers launch some
  // kernels for each parameter.
  template <typename Net>
  CapturedStep(DistributedDataParallel<Net>& ddp, ::torch::optim::Optimizer& optimizer, LossOf loss_of,
               CapturedStepOptions options = {})
      : loss_of_(std::move(loss_of)),
        capture_(
            ddp, optimizer, Graph::why_not(ddp.group()->device()), [] { return std::make_unique<Graph>(); }, options) {}

  // Runs a whole step: clears the gradients of ddp's parameters, computes, averages, and steps the optimizer. `inputs`
  // are loss_of's arguments; the program may change them in place after the call. Returns the loss of this rank's rows,
  // without autograd's graph, in memory that no later step writes.
  //
  // The step runs eagerly, and logs each reason once,
  //
  // - on the CPU, and where the program has no CUDA graphs (see CudaGraph);
  // - for inputs of another kind than the captured kind, such as a last batch of fewer rows or of no rows;
  // - for inputs that are not on the group's device, or require a gradient;
  // - with a SyncBatchNorm of several ranks that trains, because its statistics are collectives.
  //
  // The step throws InvalidArgument for no_sync() and DdpOptions::reproducible, because each backward is a step; for
  // DdpOptions::shard; and for DdpOptions::weight_outputs, whose factor is a number on the host.
  //
  // A captured step does not support
  //
  // - a GradScaler, or clipping of gradients, because the step has no place for them;
  // - in `loss_of`: collectives on the device, ddp's set_weight() and record_loss(), .item(), copies to the host, and
  //   hooks that do these things in backward.
  template <std::convertible_to<at::Tensor>... Inputs>
  at::Tensor operator()(const Inputs&... inputs) {
    return capture_.run({inputs...}, [this](const std::vector<at::Tensor>& given) {
      return [&]<std::size_t... i>(std::index_sequence<i...>) { return loss_of_(given[i]...); }
      (std::index_sequence_for<Inputs...>{});
    });
  }

  // Sets the number of terms that this rank's loss is the mean of, for the next step only. Without this call the weight
  // is the number of ddp's rows, as without ddp.set_weight(). The weight may differ from step to step.
  void set_weight(std::integral auto weight) { capture_.set_weight(static_cast<std::int64_t>(weight)); }
  // Returns whether forward and backward of the last step were a replay.
  bool was_replayed() const { return capture_.was_replayed(); }

 private:
  LossOf loss_of_;
  StepCapture capture_;
};

template <typename Net, typename LossOf>
CapturedStep(DistributedDataParallel<Net>&, ::torch::optim::Optimizer&, LossOf, CapturedStepOptions = {})
    -> CapturedStep<LossOf>;

}  // namespace lockstep::libtorch
