// SPDX-License-Identifier: Apache-2.0
// Collectives that record nothing. collective_gradients.cc has those with a backward.
#include "lockstep/libtorch/collectives.h"

#include <ATen/Functions.h>

#include <utility>
#include <vector>

#include "lockstep/libtorch/torch_stream.h"
#include "runtime/libtorch/collective_tensors.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Starts `start()` behind torch's current stream.
template <typename Start>
TensorWork started(const Group& group, TensorWork::Tensors tensors, const Start& start) {
  const StreamView stream = current_stream(group->device());
  const OnStream ordered(*group, stream);
  return {group, stream, start(), std::move(tensors)};
}

// Memory that is written in place: the tensor's own, or dense memory that goes back to it.
TensorWork::Tensors in_place(const at::Tensor& tensor) {
  const at::Tensor dense = dense_values(tensor);
  return {.written = dense.data_ptr() == tensor.data_ptr() ? tensor : dense, .result = tensor};
}

// Autograd and DistributedDataParallel count writes.
void count_write(const TensorWork::Tensors& tensors) {
  if (tensors.written.is_same(tensors.result) && !tensors.result.is_inference()) {
    tensors.result.unsafeGetTensorImpl()->bump_version();
  }
}

// [n, ...] times `parts` is [parts n, ...]; of 0 dimensions [parts].
std::vector<std::int64_t> rows_times(const at::Tensor& tensor, std::int64_t parts) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  if (sizes.empty()) return {parts};
  sizes.front() *= parts;
  return sizes;
}

BufferView none_like(const at::Tensor& tensor) {
  BufferView view = elements_of(tensor);
  view.data = nullptr;
  view.count = 0;
  return view;
}

}  // namespace

TensorWork all_reduce_async(const at::Tensor& tensor, const Group& group, ReduceOp op) {
  const CollectiveCall call("all_reduce", group);
  call.check(tensor);
  call.check_computable(tensor);
  call.check_written(tensor);
  TensorWork::Tensors tensors = in_place(tensor);
  const BufferView buffer = elements_of(tensors.written);
  TensorWork work = started(group, tensors, [&] { return group->all_reduce(buffer, {.op = op}); });
  count_write(tensors);
  return work;
}

TensorWork broadcast_async(const at::Tensor& tensor, const Group& group, int root) {
  const CollectiveCall call("broadcast", group);
  call.check(tensor);
  call.check_written(tensor);
  TensorWork::Tensors tensors = in_place(tensor);
  const BufferView buffer = elements_of(tensors.written);
  TensorWork work = started(group, tensors, [&] { return group->broadcast(buffer, root); });
  count_write(tensors);
  return work;
}

TensorWork all_gather_async(const at::Tensor& tensor, const Group& group) {
  const CollectiveCall call("all_gather", group);
  call.check(tensor);
  call.check_unrecorded(tensor);
  const at::Tensor read = dense_values(tensor);
  const at::Tensor result = at::empty(rows_times(read, group->size()), read.options());
  return started(group, {.read = read, .written = result, .result = result},
                 [&] { return group->all_gather(elements_of(read), elements_of(result)); });
}

TensorWork reduce_scatter_async(const at::Tensor& tensor, const Group& group, ReduceOp op) {
  const CollectiveCall call("reduce_scatter", group);
  call.check(tensor);
  call.check_unrecorded(tensor);
  call.check_computable(tensor);
  call.check_divisible(tensor);
  const at::Tensor read = dense_values(tensor);
  std::vector<std::int64_t> sizes = read.sizes().vec();
  sizes.front() /= group->size();
  const at::Tensor result = at::empty(sizes, read.options());
  return started(group, {.read = read, .written = result, .result = result},
                 [&] { return group->reduce_scatter(elements_of(read), elements_of(result), {.op = op}); });
}

TensorWork all_to_all_async(const at::Tensor& tensor, const Group& group) {
  const CollectiveCall call("all_to_all", group);
  call.check(tensor);
  call.check_unrecorded(tensor);
  call.check_divisible(tensor);
  const at::Tensor read = dense_values(tensor);
  const at::Tensor result = at::empty(read.sizes(), read.options());
  return started(group, {.read = read, .written = result, .result = result},
                 [&] { return group->all_to_all(elements_of(read), elements_of(result)); });
}

TensorWork gather_async(const at::Tensor& tensor, const Group& group, int root) {
  const CollectiveCall call("gather", group);
  call.check(tensor);
  call.check_unrecorded(tensor);
  const at::Tensor read = dense_values(tensor);
  at::Tensor result;
  if (group->rank() == root) result = at::empty(rows_times(read, group->size()), read.options());
  const BufferView output = result.defined() ? elements_of(result) : none_like(read);
  return started(group, {.read = read, .written = result, .result = result},
                 [&] { return group->gather(elements_of(read), output, root); });
}

TensorWork scatter_async(const at::Tensor& output, const at::Tensor& input, const Group& group, int root) {
  const CollectiveCall call("scatter", group);
  call.check(output);
  call.check_written(output);
  TensorWork::Tensors tensors = in_place(output);
  BufferView parts = none_like(tensors.written);
  if (group->rank() == root) {
    call.check(input);
    call.check_unrecorded(input);
    tensors.read = dense_values(input);
    parts = elements_of(tensors.read);
  }
  TensorWork work = started(group, tensors, [&] { return group->scatter(parts, elements_of(tensors.written), root); });
  count_write(tensors);
  return work;
}

TensorWork send_async(const at::Tensor& tensor, const Group& group, int destination, int tag) {
  const CollectiveCall call("send", group);
  call.check(tensor);
  call.check_unrecorded(tensor);
  const at::Tensor read = dense_values(tensor);
  return started(group, {.read = read}, [&] { return group->send(elements_of(read), destination, tag); });
}

TensorWork recv_async(const at::Tensor& tensor, const Group& group, int source, int tag) {
  const CollectiveCall call("recv", group);
  call.check(tensor);
  call.check_written(tensor);
  TensorWork::Tensors tensors = in_place(tensor);
  const BufferView buffer = elements_of(tensors.written);
  TensorWork work = started(group, tensors, [&] { return group->recv(buffer, source, tag); });
  count_write(tensors);
  return work;
}

void all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op) {
  all_reduce_async(tensor, group, op).wait();
}

void broadcast(const at::Tensor& tensor, const Group& group, int root) { broadcast_async(tensor, group, root).wait(); }

at::Tensor gather(const at::Tensor& tensor, const Group& group, int root) {
  return gather_async(values_of(tensor), group, root).wait();
}

void scatter(const at::Tensor& output, const at::Tensor& input, const Group& group, int root) {
  scatter_async(output, values_of(input), group, root).wait();
}

void send(const at::Tensor& tensor, const Group& group, int destination, int tag) {
  send_async(values_of(tensor), group, destination, tag).wait();
}

void recv(const at::Tensor& tensor, const Group& group, int source, int tag) {
  recv_async(tensor, group, source, tag).wait();
}

void barrier(const Group& group) {
  const CollectiveCall call("barrier", group);
  const OnCurrentStream ordered(call.group());
  group->barrier().wait();
}

}  // namespace lockstep::libtorch
