// SPDX-License-Identifier: Apache-2.0
// torch.distributed's collectives, on torch::Tensor.
//
//   lockstep::libtorch::all_reduce(loss, group, lockstep::ReduceOp::avg);             // in place
//   at::Tensor all = lockstep::libtorch::all_gather(embeddings, group);               // autograd goes through it
//   at::Tensor all = lockstep::libtorch::all_gather_rows(embeddings, ddp);            // uneven ranks, under DDP
//
// Collective: every rank of the group makes the same calls in the same order, with equal shapes and dtypes, unless a
// function says otherwise. Tensors may have any strides, 0 dimensions or no elements. Collectives that only move data
// take any dtype, including bool and complex. Collectives that compute (all_reduce, reduce_scatter) take lockstep's
// dtypes: float32, float64, bfloat16, float16, int32, int64, uint8. On the CPU 16-bit floats are summed in float32 and
// rounded once; avg of integers truncates towards zero.
//
// Order: a call on CPU tensors returns when the result is complete. A call on CUDA tensors follows torch's current
// stream, which waits for the result; the host waits only if a function says so. The _async functions return a
// TensorWork at once.
//
// Autograd goes through all_reduced, all_gather, all_gather_rows, reduce_scatter and all_to_all. The backward of
// these functions is a collective too: every rank's loss must depend on the result, and the tensor requires a
// gradient on all ranks or on none. Backward differentiates the SUM of all ranks' losses: the gradient of an
// all_gather is the reduce_scatter of the ranks' gradients. Results of the other functions require no gradient.
// Second derivatives throw InvalidArgument. See CountsLosses for gradients under DistributedDataParallel.
//
// The calls take a shared_ptr to the group, because backward and TensorWork keep the group alive.
//
// Threads: the group's threads may call these functions. Failure: calls throw the group's errors; Mismatch names ranks
//   whose sizes, dtypes or operations differ (with NCCL only under LOCKSTEP_CHECK_COLLECTIVES=1). Calls throw
//   InvalidArgument, before anything starts or changes, for an undefined or sparse tensor, for a tensor on another
//   device than the group's, for a dtype that can't be computed with, and for a shape whose rows the ranks don't
//   divide. Calls also throw InvalidArgument for a tensor to write that requires a gradient while gradients are
//   recorded, or whose elements share memory, as after expand().
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/libtorch/options.h"
#include "lockstep/libtorch/tensor_work.h"

namespace lockstep::libtorch {

// Reduces `tensor` in place: every rank gets the reduction of all ranks' tensors, with the same bits.
LOCKSTEP_API void all_reduce(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                             ReduceOp op = ReduceOp::sum);
// Returns the reduction as a new tensor. Autograd goes through sum and avg. Throws InvalidArgument if a gradient is to
// be recorded for any other op.
LOCKSTEP_API at::Tensor all_reduced(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                    ReduceOp op = ReduceOp::sum, const GradientOptions& gradient = {});
// Overwrites `tensor` in place with root's values.
LOCKSTEP_API void broadcast(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group, int root = 0);
// Returns all ranks' rows in rank order: [n, ...] on each rank gives [size n, ...]; a tensor of 0 dimensions
// gives [size].
LOCKSTEP_API at::Tensor all_gather(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                   const GradientOptions& gradient = {});
// Returns all ranks' rows like all_gather, for ranks with different numbers of rows, including none: [n_rank, ...]
// gives [sum of n_rank, ...]. The host waits for a small collective that exchanges the numbers. Throws Mismatch on
// every rank if rows differ in shape or dtype.
LOCKSTEP_API at::Tensor all_gather_rows(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                        const GradientOptions& gradient = {});
// Maps [size n, ...] to [n, ...]: rank r gets the reduction of the r-th parts of all ranks.
LOCKSTEP_API at::Tensor reduce_scatter(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                       ReduceOp op = ReduceOp::sum, const GradientOptions& gradient = {});
// Maps a tensor of shape [size n, ...] to an equal shape: part j of rank i becomes part i of rank j.
LOCKSTEP_API at::Tensor all_to_all(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                   const GradientOptions& gradient = {});
// Gathers to root: returns on root what all_gather returns, and on the other ranks an undefined tensor.
LOCKSTEP_API at::Tensor gather(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group, int root = 0);
// Gathers rows to root: returns on root what all_gather_rows returns, and on the other ranks an undefined tensor.
// Autograd does not go through gather_rows.
LOCKSTEP_API at::Tensor gather_rows(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group, int root = 0);
// Fills `output`, [n, ...], with this rank's part of root's `input`, [size n, ...]. The other ranks' `input` is ignored
// and may be undefined.
LOCKSTEP_API void scatter(const at::Tensor& output, const at::Tensor& input, const std::shared_ptr<ProcessGroup>& group,
                          int root = 0);
// send() sends `tensor` to rank `destination`; recv() fills `tensor` with a message of rank `source`. Messages match in
// order per (sender, receiver, tag); see ProcessGroup::send.
LOCKSTEP_API void send(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group, int destination,
                       int tag = 0);
LOCKSTEP_API void recv(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group, int source, int tag = 0);
// Waits on the host until every rank has called barrier(), and until the work in torch's current stream is done.
LOCKSTEP_API void barrier(const std::shared_ptr<ProcessGroup>& group);

// The _async functions start the same collectives without waiting. The functions throw InvalidArgument for a tensor
// that requires a gradient while gradients are recorded: pass the tensor's detach().
[[nodiscard]] LOCKSTEP_API TensorWork all_reduce_async(const at::Tensor& tensor,
                                                       const std::shared_ptr<ProcessGroup>& group,
                                                       ReduceOp op = ReduceOp::sum);
[[nodiscard]] LOCKSTEP_API TensorWork broadcast_async(const at::Tensor& tensor,
                                                      const std::shared_ptr<ProcessGroup>& group, int root = 0);
[[nodiscard]] LOCKSTEP_API TensorWork all_gather_async(const at::Tensor& tensor,
                                                       const std::shared_ptr<ProcessGroup>& group);
[[nodiscard]] LOCKSTEP_API TensorWork reduce_scatter_async(const at::Tensor& tensor,
                                                           const std::shared_ptr<ProcessGroup>& group,
                                                           ReduceOp op = ReduceOp::sum);
[[nodiscard]] LOCKSTEP_API TensorWork all_to_all_async(const at::Tensor& tensor,
                                                       const std::shared_ptr<ProcessGroup>& group);
[[nodiscard]] LOCKSTEP_API TensorWork gather_async(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                                   int root = 0);
[[nodiscard]] LOCKSTEP_API TensorWork scatter_async(const at::Tensor& output, const at::Tensor& input,
                                                    const std::shared_ptr<ProcessGroup>& group, int root = 0);
[[nodiscard]] LOCKSTEP_API TensorWork send_async(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                                 int destination, int tag = 0);
[[nodiscard]] LOCKSTEP_API TensorWork recv_async(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                                 int source, int tag = 0);

// CountsLosses is the concept of a DistributedDataParallel, which has a group and the weights of its ranks' losses.
//
// Under DistributedDataParallel the loss of the job is the weighted mean of the ranks' losses, not their sum. Pass
// `ddp` in place of the group, or ddp.gradient_options() as the last argument: each rank's gradients are then
// multiplied by the rank's weight before the collective, and divided by the receiver's weight after the collective.
// Parameters then get the gradients of one process on all rows, for any partition. Without `ddp` parameters get these
// gradients only if all ranks have equal weights, or with Loss::sum.
//
// The backward's collectives and the buckets of one group need one order on every rank. If ranks leave out different
// parameters, set DdpOptions::overlap to false, or use a separate group for the collectives.
template <typename T>
concept CountsLosses = requires(const T& ddp) {
  { ddp.group() } -> std::convertible_to<std::shared_ptr<ProcessGroup>>;
  { ddp.gradient_options() } -> std::convertible_to<GradientOptions>;
};

template <CountsLosses Ddp>
at::Tensor all_reduced(const at::Tensor& tensor, const Ddp& ddp, ReduceOp op = ReduceOp::sum) {
  return all_reduced(tensor, ddp.group(), op, ddp.gradient_options());
}
template <CountsLosses Ddp>
at::Tensor all_gather(const at::Tensor& tensor, const Ddp& ddp) {
  return all_gather(tensor, ddp.group(), ddp.gradient_options());
}
template <CountsLosses Ddp>
at::Tensor all_gather_rows(const at::Tensor& tensor, const Ddp& ddp) {
  return all_gather_rows(tensor, ddp.group(), ddp.gradient_options());
}

}  // namespace lockstep::libtorch
