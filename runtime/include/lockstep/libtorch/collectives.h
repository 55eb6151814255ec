// SPDX-License-Identifier: Apache-2.0
// Defines torch.distributed's collectives for torch::Tensor.
//
//   lockstep::libtorch::all_reduce(loss, group, lockstep::ReduceOp::avg);             // in place
//   at::Tensor all = lockstep::libtorch::all_gather(embeddings, group);               // autograd goes through it
//   at::Tensor all = lockstep::libtorch::all_gather_rows(embeddings, ddp);            // uneven ranks, under DDP
//
// Collective: every rank of the group makes the same calls in the same order, with equal shapes and dtypes, unless a
// function's comment says otherwise. Tensors may have any strides, 0 dimensions or no elements. Collectives that only
// move data take any dtype, including bool and complex. Collectives that compute (all_reduce, reduce_scatter) take
// lockstep's dtypes: float32, float64, bfloat16, float16, int32, int64, uint8. On the CPU 16-bit floats are summed in
// float32 and rounded once; avg of integers truncates towards zero.
//
// Order: a collective on CPU tensors returns when the result is complete. A collective on CUDA tensors starts after the
// work in torch's current stream, and torch's current stream waits for the result. The host waits only in functions
// whose comments say so.
//
// The collective functions take a shared_ptr to the group, because backward and TensorWork keep the group alive. See
// CountsLosses for autograd.
//
// Threads: any thread that may use the group may call the functions of this header.
// Failure: calls throw the group's errors. If sizes, dtypes or operations differ between ranks, the collectives throw
//   Mismatch, which names the ranks (with NCCL only under LOCKSTEP_CHECK_COLLECTIVES=1). The comment above all_reduce()
//   says which tensors cause InvalidArgument.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/libtorch/options.h"
#include "lockstep/libtorch/tensor_work.h"

namespace lockstep::libtorch {

// The functions of this header throw InvalidArgument for an undefined or sparse tensor, and for a tensor on another
// device than the group's; the call then starts and changes nothing. The functions also throw InvalidArgument for a
// dtype that the collective can't compute with, and for a number of rows that is not a multiple of the number of ranks.
// An output tensor causes InvalidArgument if it requires a gradient while gradients are recorded, or if its elements
// share memory, as after expand().

// Reduces `tensor` in place: every rank gets the reduction of all ranks' tensors, with the same bits on all ranks.
LOCKSTEP_API void all_reduce(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                             ReduceOp op = ReduceOp::sum);
// Returns the reduction as a new tensor. Autograd differentiates ReduceOp::sum and ReduceOp::avg. Throws
// InvalidArgument if `tensor` requires a gradient while gradients are recorded, and `op` is neither sum nor avg.
LOCKSTEP_API at::Tensor all_reduced(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                    ReduceOp op = ReduceOp::sum, const GradientOptions& gradient = {});
// Overwrites `tensor` in place with root's values.
LOCKSTEP_API void broadcast(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group, int root = 0);
// Returns all ranks' rows in rank order: a tensor of shape [n, ...] on each rank gives [size * n, ...], for a group of
// `size` ranks. A tensor of 0 dimensions gives a tensor of shape [size].
LOCKSTEP_API at::Tensor all_gather(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                   const GradientOptions& gradient = {});
// Returns all ranks' rows in rank order, like all_gather, for ranks with different numbers of rows, including 0:
// [n_rank, ...] gives [sum of n_rank, ...]. The host waits for a small collective that exchanges the numbers of rows.
// Throws Mismatch on every rank if the ranks' rows differ in shape or dtype.
LOCKSTEP_API at::Tensor all_gather_rows(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                        const GradientOptions& gradient = {});
// Reduces tensors of shape [size * n, ...] to one part of shape [n, ...] per rank: rank r gets the reduction of the
// r-th parts of all ranks.
LOCKSTEP_API at::Tensor reduce_scatter(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                       ReduceOp op = ReduceOp::sum, const GradientOptions& gradient = {});
// Exchanges parts of tensors of shape [size * n, ...] between the ranks: part j of rank i becomes part i of rank j.
LOCKSTEP_API at::Tensor all_to_all(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                                   const GradientOptions& gradient = {});
// Gathers the ranks' rows on rank `root`: returns the result of all_gather on `root`, and an undefined tensor on all
// other ranks.
LOCKSTEP_API at::Tensor gather(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group, int root = 0);
// Gathers different numbers of rows on rank `root`: returns the result of all_gather_rows on `root`, and an undefined
// tensor on all other ranks. Autograd does not differentiate gather_rows.
LOCKSTEP_API at::Tensor gather_rows(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group, int root = 0);
// Fills `output`, of shape [n, ...], with this rank's part of rank root's `input`; `input` has shape [size * n, ...] in
// a group of `size` ranks. On ranks other than `root`, `input` is ignored and may be undefined.
LOCKSTEP_API void scatter(const at::Tensor& output, const at::Tensor& input, const std::shared_ptr<ProcessGroup>& group,
                          int root = 0);
// send() sends `tensor` to rank `destination`; recv() fills `tensor` with a message of rank `source`. Messages with
// equal sender, receiver and tag arrive in the order of their send() calls; see ProcessGroup::send.
LOCKSTEP_API void send(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group, int destination,
                       int tag = 0);
LOCKSTEP_API void recv(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group, int source, int tag = 0);
// Blocks the host until every rank has called barrier(), and until the work in torch's current stream is done.
LOCKSTEP_API void barrier(const std::shared_ptr<ProcessGroup>& group);

// The _async functions start the collectives of the same names, and return without waiting. The _async functions throw
// InvalidArgument for a tensor that requires a gradient while gradients are recorded; pass tensor.detach() instead.
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

// CountsLosses is the concept of a DistributedDataParallel, which has a group and knows the weights of the
// ranks' losses.
//
// Autograd differentiates all_reduced, all_gather, all_gather_rows, reduce_scatter and all_to_all. The backward of a
// differentiable collective is also a collective. Every rank's loss must therefore depend on the collective's result,
// and the tensor must require a gradient on all ranks or on none. Backward differentiates the SUM of all ranks' losses:
// for example, the gradient of an all_gather is the reduce_scatter of the ranks' gradients. The results of functions
// that autograd does not differentiate require no gradient. Second derivatives throw InvalidArgument.
//
// Under DistributedDataParallel the loss of the job is the weighted mean of the ranks' losses, not their sum. To weight
// the gradients, pass `ddp` in place of the group, or ddp.gradient_options() as the last argument. With `ddp` or its
// gradient_options(), each rank's gradients are multiplied by the rank's weight before the collective of backward, and
// divided by the receiving rank's weight after the collective. With these weights, parameters get the gradients that
// one process would compute on all rows, for any partition of the rows. Without `ddp` and ddp.gradient_options(),
// parameters get the right gradients only with Loss::sum, or if all ranks have equal weights.
//
// In each group, all ranks must run the collectives of backward and the exchanges of buckets in one and the same order.
// If ranks leave different parameters out of backward, set DdpOptions::overlap to false, or use a separate group for
// the collectives.
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
