// SPDX-License-Identifier: Apache-2.0
// CapturedStep is a training step of LibTorch whose forward and backward a GPU replays as a CUDA graph.
//
//   lockstep::libtorch::CapturedStep step(ddp, optimizer, [&](const torch::Tensor& x, const torch::Tensor& y) {
//     return torch::nll_loss(ddp(x), y);
//   });
//   for (auto& batch : *loader) step(batch.data, batch.target);  // zero_grad(), ddp.backward(loss), optimizer.step()
//
// A program makes one CapturedStep per DistributedDataParallel, before the first forward of the
// DistributedDataParallel.
// Collective: each call of a CapturedStep is collective, like a training step that runs eagerly. A replayed step runs
//   the same collectives as an eager step, in the same order and buckets, so one rank may replay a step that another
//   rank runs eagerly.
// Threads: a CapturedStep belongs to the threads of its DistributedDataParallel.
// Failure: a CapturedStep's functions throw InvalidArgument for unsupported uses (see operator()). An exception during
//   a capture fails the group on every rank, with the exception's text, like an exception in backward.
//
// A CapturedStep saves time if the host is slower than the device (small models and batches). A replayed step costs the
// host only one launch, the collectives and the optimizer's step. A CapturedStep sends gradients after backward has
// ended, so no all-reduce overlaps backward. The guide to captured steps is docs/LIBTORCH_REFERENCE.md, "Captured
// steps"; docs/adr/0088-computing-is-captured-collectives-are-not.md gives the reasons.
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

// Every LibTorch for GPUs contains cuda_cmake_macros.h; a LibTorch for CPUs lacks this header.
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && __has_include(<cuda_runtime_api.h>)
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#define LOCKSTEP_HAS_CUDA_GRAPHS 1
static_assert(CUDART_VERSION >= 12040, "with a CUDA before 12.4 LibTorch's CUDAGraph has another size");
#else
#define LOCKSTEP_HAS_CUDA_GRAPHS 0
#endif

namespace lockstep::libtorch {

// CudaGraph wraps LibTorch's own CUDA graph. The program compiles CudaGraph against the program's own LibTorch, so
// lockstep's library needs no CUDA. CudaGraph needs a LibTorch for GPUs, 2.6 or newer, and LibTorch's CUDA headers
// (cuda_runtime_api.h) on the include path. Without cuda_runtime_api.h or a LibTorch for GPUs, CudaGraph captures
// nothing. Other threads may use CUDA during a capture.
class CudaGraph final : public StepGraph {
 public:
#if LOCKSTEP_HAS_CUDA_GRAPHS
  static std::string why_not(DeviceId device) {
    return device.kind == DeviceKind::cuda ? "" : "the group is on the CPU, which has no CUDA graphs";
  }
  void capture(std::function<void()> body) override {
    // The allocator's cache is emptied first, because the graph's memory pool can neither use nor free the memory that
    // eager steps have left in the cache.
    c10::cuda::CUDACachingAllocator::emptyCache();
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      body();
    } catch (...) {
      try {
        graph_.capture_end();  // without this call the stream would stay captured
      } catch (const std::exception&) {
        // The exception of capture_end() only says that `body` broke the capture; the `throw` below rethrows the
        // exception of `body`.
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
// For each kind of input, the first CapturedStepOptions::warm_up steps run eagerly, like steps that the program writes
// itself. After the warm-up, a CapturedStep captures one step, and replays this step for inputs of the same kind.
// Inputs are of the same kind if their dtypes, shapes and devices are equal, and the same modules are in training mode.
// On a device the steps run in the CapturedStep's own stream, after the earlier work in the caller's current stream. A
// captured step treats weights, losses, step notes, stops, NaN and failures like an eager step. With DdpOptions::seed,
// torch's generators are seeded before each replay.
template <typename LossOf, std::derived_from<StepGraph> Graph = CudaGraph>
class CapturedStep {
 public:
  // Makes a step of `ddp` and `optimizer`. The program must keep `ddp`, its module and `optimizer` alive as long as the
  // CapturedStep. Throws InvalidArgument if a loss or an output of an earlier forward is still alive.
  //
  // `loss_of` runs one forward through ddp and returns the loss. A replay does not repeat the host's work in `loss_of`,
  // such as reading numbers or running collectives of a group on the CPU. A replay uses the tensors that `loss_of`
  // chose at the capture, except that the inputs of the replay replace the inputs of the capture. Parameters and
  // buffers keep their memory. `optimizer` may be any optimizer, and its options may change from step to step.
  // FusedSGD, FusedAdam and FusedAdamW launch one to three kernels per step; torch's own optimizers launch some kernels
  // for each parameter.
  template <typename Net>
  CapturedStep(DistributedDataParallel<Net>& ddp, ::torch::optim::Optimizer& optimizer, LossOf loss_of,
               CapturedStepOptions options = {})
      : loss_of_(std::move(loss_of)),
        capture_(
            ddp, optimizer, Graph::why_not(ddp.group()->device()), [] { return std::make_unique<Graph>(); }, options) {}

  // Runs a whole step: clears the gradients of ddp's parameters, computes the loss and the gradients, averages the
  // gradients, and steps the optimizer. `inputs` are the arguments of loss_of; the program may change the inputs in
  // place after the call. Returns the loss of this rank's rows, detached from autograd's graph, in memory that no later
  // step writes.
  //
  // On the CPU, or without CUDA graphs (see CudaGraph), every step runs eagerly; each reason for eager steps is logged
  // once. A step also runs eagerly if its inputs are of another kind than the captured inputs, such as a last batch of
  // fewer rows or of no rows. A step also runs eagerly if an input is not on the group's device or requires a gradient.
  // A step runs eagerly if the module has a SyncBatchNorm of several ranks in training mode, because collectives
  // compute the SyncBatchNorm's statistics.
  //
  // A step throws InvalidArgument under no_sync() and with DdpOptions::reproducible, because each backward of a
  // CapturedStep is a whole step. A step also throws InvalidArgument with DdpOptions::shard, and with
  // DdpOptions::weight_outputs, because the factor of weight_outputs is a number on the host.
  //
  // A captured step supports neither a GradScaler nor clipping of gradients, because both work between backward and the
  // optimizer's step. In a captured step, `loss_of` must not run collectives on the device, call ddp's set_weight() or
  // record_loss(), call .item(), or copy to the host. In the backward of a captured step, hooks must not run
  // collectives on the device, call .item() or copy to the host.
  template <std::convertible_to<at::Tensor>... Inputs>
  at::Tensor operator()(const Inputs&... inputs) {
    return capture_.run({inputs...}, [this](const std::vector<at::Tensor>& given) {
      return [&]<std::size_t... i>(std::index_sequence<i...>) { return loss_of_(given[i]...); }
      (std::index_sequence_for<Inputs...>{});
    });
  }

  // Sets this rank's weight for the next step only: the number of terms that this rank's loss is the mean of. Without
  // set_weight() the weight is the number of rows that ddp counts. The weight may differ from step to step.
  void set_weight(std::integral auto weight) { capture_.set_weight(static_cast<std::int64_t>(weight)); }
  // Returns whether the last step replayed forward and backward from the captured graph.
  bool was_replayed() const { return capture_.was_replayed(); }

 private:
  LossOf loss_of_;
  StepCapture capture_;
};

template <typename Net, typename LossOf>
CapturedStep(DistributedDataParallel<Net>&, ::torch::optim::Optimizer&, LossOf, CapturedStepOptions = {})
    -> CapturedStep<LossOf>;

}  // namespace lockstep::libtorch
