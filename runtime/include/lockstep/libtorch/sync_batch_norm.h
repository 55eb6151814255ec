// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm is batch normalisation over the rows of all ranks.
//
//   SyncBatchNorm norm{nullptr};                                          // in place of torch::nn::BatchNorm2d
//   norm = register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(64)));
//
// It has the parameters, buffers, names and numbers of torch::nn::BatchNorm1d, 2d or 3d on the global batch, for any
// partition of the batch, ranks of 0 rows included. DistributedDataParallel gives it its group; without a group, or in
// evaluation, it is a plain batch norm.
//
// Its second argument is a group of its own (another over the same ranks, or one of some of them): the rows of that
// group's ranks count. Its running statistics may then differ from rank to rank, and DistributedDataParallel broadcasts
// rank 0's with the other buffers.
//
// Collective: every forward that takes statistics of the batch, and its backward; all ranks run both. They send 2
// float64 numbers per channel, and one more.
//
// Order: on DistributedDataParallel's own group all ranks run the layer's collectives at the same place among its
//   buckets. If ranks leave out different parameters, their buckets become full at different places, so all buckets
//   leave at the end of backward, as with DdpOptions::overlap = false. With a group of the layer's own buckets leave
//   during backward; on GPUs use one only if all ranks use the same parameters, because NCCL needs one order over all
//   its groups.
// Threads: those of forward and backward.
// Failure: the group's errors; InvalidArgument for a wrong shape, for one value per channel on all ranks together (only
//   found on the CPU: on a device the host does not wait to know), and for rows whose loss has weight 0.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/libtorch/options.h"

namespace lockstep::libtorch {

class LOCKSTEP_API SyncBatchNormImpl
    : public ::torch::nn::NormImplBase<0, SyncBatchNormImpl, ::torch::nn::BatchNormOptions> {
 public:
  explicit SyncBatchNormImpl(const ::torch::nn::BatchNormOptions& options,
                             std::shared_ptr<ProcessGroup> group = nullptr);

  // Normalises `input`: [N, C] or [N, C, ...], in a floating-point dtype.
  at::Tensor forward(const at::Tensor& input);

  // A SyncBatchNorm with the parameters of a torch::nn::BatchNorm1d, 2d or 3d, and its buffers' memory.
  template <typename Norm>
  LOCKSTEP_LOCAL static std::shared_ptr<SyncBatchNormImpl> in_place_of(const Norm& norm,
                                                                       std::shared_ptr<ProcessGroup> group);

  // Called by DistributedDataParallel. The layer takes `group` if it has none yet; `loss_weight` is the weight of this
  // rank's loss, null if gradients arrive weighted. `before_backward` runs before the collective of every backward, on
  // its thread, for collectives that must precede it on every rank.
  void join(std::shared_ptr<ProcessGroup> group, LossWeight loss_weight,
            std::function<void()> before_backward = nullptr) const;
  // The group; null before the layer has one.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  // Whether join() was called with a `before_backward`.
  bool is_joined() const { return static_cast<bool>(before_backward_); }
  // Whether a forward would be a collective now: in training, or without running statistics.
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

// The holder, as torch's TORCH_MODULE makes it.
class LOCKSTEP_API SyncBatchNorm : public ::torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using ::torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
  using Impl = SyncBatchNormImpl;
};

// Replaces every BatchNorm1d, 2d and 3d within torch::nn::Sequential, at any depth, by a SyncBatchNorm with the same
// parameter and buffer tensors, so an optimizer that was made before stays valid. Call it before
// DistributedDataParallel. With a `group` the layers compute over its ranks instead of DistributedDataParallel's.
//
// InvalidArgument, with nothing changed, if a norm is a member of a class of the program: C++ can't replace a member of
// type BatchNorm2d. Declare that member as SyncBatchNorm.
LOCKSTEP_API void convert_sync_batch_norm(::torch::nn::Module& module,
                                          const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace lockstep::libtorch
