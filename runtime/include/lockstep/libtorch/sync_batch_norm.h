// SPDX-License-Identifier: Apache-2.0
// Batch normalisation over the rows of all ranks.
//
//   SyncBatchNorm norm{nullptr};                                          // in place of torch::nn::BatchNorm2d
//   norm = register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(64)));
//
// Same parameters, buffers, names and numbers as torch::nn::BatchNorm1d, 2d or 3d on the global batch, for any
// partition of it, ranks of 0 rows included. DistributedDataParallel gives it its group; without one, or in evaluation,
// it is a plain batch norm.
//
// A group of its own (another over the same ranks, or one of some of them) is its second argument: rows of that group's
// ranks count. Then its running statistics may differ from rank to rank, and DistributedDataParallel broadcasts rank
// 0's with the other buffers.
//
// Collective: every forward that takes statistics of the batch, and its backward; all ranks run both. Numbers travel in
// float64: 2 per channel and one.
//
// Order: on DistributedDataParallel's own group the layer's collectives must come at the same place among its buckets
// on every rank, and if ranks leave out different parameters, buckets become full at different places. So they leave at
// the end of backward, as with DdpOptions::overlap = false. On a group of the layer's own they leave while backward
// runs; on GPUs give it one only where all ranks use the same parameters, for NCCL wants one order over all its groups.
// Threads: those of forward and backward. Failure: throws the group's errors; InvalidArgument for a wrong shape, one
//   value per channel on all ranks together (found on the CPU only: on a device the host does not wait to know), or
//   rows whose loss weighs 0.
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

  // input: [N, C] or [N, C, ...], in a floating-point dtype.
  at::Tensor forward(const at::Tensor& input);

  // With the very parameters of a torch::nn::BatchNorm1d, 2d or 3d, and its buffers' memory.
  template <typename Norm>
  LOCKSTEP_LOCAL static std::shared_ptr<SyncBatchNormImpl> in_place_of(const Norm& norm,
                                                                       std::shared_ptr<ProcessGroup> group);

  // DistributedDataParallel calls it: the layer takes `group` if it has none yet; `loss_weight` is the weight of this
  // rank's loss, null if gradients arrive weighted. `before_backward` is called ahead of the collective of every
  // backward, on its thread, for collectives that must come before it on every rank.
  void join(std::shared_ptr<ProcessGroup> group, LossWeight loss_weight,
            std::function<void()> before_backward = nullptr) const;
  // Null before it has one.
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

// Its holder, as torch's TORCH_MODULE makes them.
class LOCKSTEP_API SyncBatchNorm : public ::torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using ::torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
  using Impl = SyncBatchNormImpl;
};

// Exchanges every BatchNorm1d, 2d and 3d within torch::nn::Sequential, at any depth, for a SyncBatchNorm with the same
// parameters and buffers: the same tensors, so that an optimizer that was made before stays right. Call it before
// DistributedDataParallel. With a group they compute over that one's ranks instead of DistributedDataParallel's.
//
// InvalidArgument, and nothing is changed, if one is a member of a class of the user's own: C++ can't exchange a member
// of type BatchNorm2d. Declare that one as SyncBatchNorm.
LOCKSTEP_API void convert_sync_batch_norm(::torch::nn::Module& module,
                                          const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace lockstep::libtorch
