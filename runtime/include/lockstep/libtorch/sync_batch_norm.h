// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm is batch normalisation over the rows of all ranks.
//
//   SyncBatchNorm norm{nullptr};                                          // in place of torch::nn::BatchNorm2d
//   norm = register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(64)));
//
// A SyncBatchNorm has the parameters, buffers, names and numbers of torch::nn::BatchNorm1d, 2d or 3d on the global
// batch, for any partition of the batch, also with ranks of 0 rows. DistributedDataParallel gives the layer its group.
// Without a group, or in evaluation, the layer is a plain batch norm.
//
// The constructor's second argument is a separate group (another group over the same ranks, or over some of them): then
// the rows of that group's ranks count. The layer's running statistics may then differ from rank to rank, and
// DistributedDataParallel broadcasts rank 0's statistics with the other buffers.
//
// Collective: every forward that takes statistics of the batch, and its backward, are collective; all ranks run both.
// Each collective sends 2 float64 numbers per channel, and one more number.
//
// Threads: the threads of forward and backward use the layer.
// Failure: calls throw the group's errors, and InvalidArgument for a wrong shape, for rows whose loss has weight 0, and
//   for one value per channel on all ranks together. Only the CPU finds one value per channel, because on a device the
//   host does not wait for the count.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/libtorch/options.h"

namespace lockstep::libtorch {

// The module that a SyncBatchNorm holds.
//
// Order: on DistributedDataParallel's own group all ranks run the layer's collectives at the same place among the
//   group's buckets. If ranks leave out different parameters, their buckets become full at different places, so all
//   buckets leave at the end of backward, as with DdpOptions::overlap = false. With a separate group buckets leave
//   during backward. On GPUs use a separate group only if all ranks use the same parameters, because NCCL needs one
//   order over all its groups.
class LOCKSTEP_API SyncBatchNormImpl
    : public ::torch::nn::NormImplBase<0, SyncBatchNormImpl, ::torch::nn::BatchNormOptions> {
 public:
  explicit SyncBatchNormImpl(const ::torch::nn::BatchNormOptions& options,
                             std::shared_ptr<ProcessGroup> group = nullptr);

  // Normalises `input`: [N, C] or [N, C, ...], in a floating-point dtype.
  at::Tensor forward(const at::Tensor& input);

  // Returns a SyncBatchNorm with the parameters of a torch::nn::BatchNorm1d, 2d or 3d, and with the memory of
  // its buffers.
  template <typename Norm>
  LOCKSTEP_LOCAL static std::shared_ptr<SyncBatchNormImpl> in_place_of(const Norm& norm,
                                                                       std::shared_ptr<ProcessGroup> group);

  // Gives the layer `group` if it has no group yet; DistributedDataParallel calls join(). `loss_weight` is the weight
  // of this rank's loss, null if gradients arrive weighted. `before_backward` runs before the collective of every
  // backward, on backward's thread, for collectives that must precede backward's collective on every rank.
  void join(std::shared_ptr<ProcessGroup> group, LossWeight loss_weight,
            std::function<void()> before_backward = nullptr) const;
  // Returns the group; null before the layer has a group.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  // Returns whether join() was called with a `before_backward`.
  bool is_joined() const { return static_cast<bool>(before_backward_); }
  // Returns whether a forward would be a collective now: with a group of several ranks, in training or without
  // running statistics.
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

// SyncBatchNorm is the holder, as torch's TORCH_MODULE makes holders.
class LOCKSTEP_API SyncBatchNorm : public ::torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using ::torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
  using Impl = SyncBatchNormImpl;
};

// Replaces every BatchNorm1d, 2d and 3d within torch::nn::Sequential, at any depth, by a SyncBatchNorm with the same
// parameter and buffer tensors, so an optimizer that was made before stays valid. Call this function before making the
// DistributedDataParallel. With a `group` the layers compute over its ranks instead of DistributedDataParallel's.
//
// Throws InvalidArgument, with nothing changed, if a norm is a member of a class of the program, because C++ can't
// replace a member of type BatchNorm2d. Declare such a member as SyncBatchNorm.
LOCKSTEP_API void convert_sync_batch_norm(::torch::nn::Module& module,
                                          const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace lockstep::libtorch
