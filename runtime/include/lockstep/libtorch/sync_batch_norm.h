// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm is a layer that normalises a batch over the rows of all ranks.
//
//   SyncBatchNorm norm{nullptr};                                          // in place of torch::nn::BatchNorm2d
//   norm = register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(64)));
//
// A SyncBatchNorm has the parameters and buffers of torch::nn::BatchNorm1d, 2d or 3d, under the same names. However the
// global batch is divided among the ranks, the results of a SyncBatchNorm equal the results of torch's layer on the
// global batch; a rank may have 0 rows. DistributedDataParallel gives the layer its group. Without a group, or in
// evaluation mode, a SyncBatchNorm computes the same function as torch's batch norm.
//
// The constructor of SyncBatchNorm takes a separate group as an optional second argument; with a separate group, the
// layer normalises over the rows of only that group's ranks. If a layer has a separate group, the layer's running
// statistics may differ from rank to rank; DistributedDataParallel broadcasts rank 0's running statistics together with
// the module's other buffers.
//
// Collective: a forward that computes the batch's statistics is a collective call, and so is the backward of this
//   forward. A forward sends 2 float64 numbers per channel and a count, and a backward sends 2 float64 numbers
//   per channel.
// Threads: only the threads that run forward and backward use a SyncBatchNorm.
// Failure: calls throw the group's errors. A backward throws InvalidArgument if this rank has rows but the weight of
//   this rank's loss is 0.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/libtorch/options.h"

namespace lockstep::libtorch {

// SyncBatchNormImpl is the module that a SyncBatchNorm holds.
//
// Order: if the layer uses DistributedDataParallel's own group, all ranks must run the layer's collectives and the
//   all-reduces of the gradient buckets in the same order. But ranks whose forwards use different parameters fill their
//   gradient buckets at different times. With DistributedDataParallel's own group all gradient buckets are therefore
//   sent at the end of backward, as if DdpOptions::overlap were false. With a separate group for the layer, gradient
//   buckets are sent during backward. On GPUs use a separate group only if all ranks use the same parameters, because
//   NCCL requires that all ranks start the operations of all groups in the same order.
class LOCKSTEP_API SyncBatchNormImpl
    : public ::torch::nn::NormImplBase<0, SyncBatchNormImpl, ::torch::nn::BatchNormOptions> {
 public:
  explicit SyncBatchNormImpl(const ::torch::nn::BatchNormOptions& options,
                             std::shared_ptr<ProcessGroup> group = nullptr);

  // Normalises `input`, a floating-point tensor of shape [N, C] or [N, C, ...]. Throws InvalidArgument if `input` has
  // any other shape. On the CPU, a collective forward also throws InvalidArgument if all ranks together have only one
  // value per channel. On a GPU, forward() does not notice that there is only one value per channel, because the host
  // does not wait for the count of values.
  at::Tensor forward(const at::Tensor& input);

  // Returns a SyncBatchNorm that shares its parameters and the memory of its buffers with `norm`, which is a
  // torch::nn::BatchNorm1d, 2d or 3d.
  template <typename Norm>
  LOCKSTEP_LOCAL static std::shared_ptr<SyncBatchNormImpl> in_place_of(const Norm& norm,
                                                                       std::shared_ptr<ProcessGroup> group);

  // Sets the layer's group to `group` if the layer has no group yet; DistributedDataParallel calls join().
  // `loss_weight` is the weight of this rank's loss, or null if the gradients that reach the layer are already
  // multiplied by this weight. `before_backward` runs on the backward's thread before each collective of the layer's
  // backward, and starts the collectives that every rank must start before the layer's collective.
  void join(std::shared_ptr<ProcessGroup> group, LossWeight loss_weight,
            std::function<void()> before_backward = nullptr) const;
  // Returns the layer's group, or null if the layer has no group yet.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  // Returns whether join() was called with a `before_backward` that is not empty.
  bool is_joined() const { return static_cast<bool>(before_backward_); }
  // Returns whether a forward would now be a collective call. A forward is collective if the group has several ranks,
  // and the layer is in training mode or keeps no running statistics.
  bool is_collective() const;

  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  bool uses_batch() const;
  at::Tensor normalize_alone(const at::Tensor& input);
  at::Tensor normalize_together(const at::Tensor& input);
  void update_running(const at::Tensor& mean, const at::Tensor& variance, const at::Tensor& count);

  mutable std::shared_ptr<ProcessGroup> group_;
  mutable LossWeight weight_of_loss_;
  mutable std::function<void()> before_backward_;
};

// SyncBatchNorm is the module holder of SyncBatchNormImpl, like the holders that torch's macro TORCH_MODULE defines.
class LOCKSTEP_API SyncBatchNorm : public ::torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using ::torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
  using Impl = SyncBatchNormImpl;
};

// Replaces every BatchNorm1d, 2d and 3d within a torch::nn::Sequential, at any depth, by a SyncBatchNorm with the same
// parameter and buffer tensors. An optimizer that was made before convert_sync_batch_norm() stays valid. Call this
// function before making the DistributedDataParallel. If `group` is not null, the layers normalise over the ranks of
// `group`, and not over the ranks of DistributedDataParallel's group.
//
// Throws InvalidArgument and changes nothing if a batch norm is a member of a program's class, because C++ can't
// replace a member of type BatchNorm2d. Declare such a member as SyncBatchNorm.
LOCKSTEP_API void convert_sync_batch_norm(::torch::nn::Module& module,
                                          const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace lockstep::libtorch
