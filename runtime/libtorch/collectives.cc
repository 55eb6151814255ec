// SPDX-License-Identifier: Apache-2.0
// Collectives that record nothing. collective_gradients.cc has those with a backward.
#include "lockstep/libtorch/collectives.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/libtorch/torch_stream.h"
#include "runtime/comm/row_counts.h"
#include "runtime/libtorch/collective_tensors.h"
#include "runtime/libtorch/node.h"
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

// Starts `start(memory)`, which writes a tensor in place: its own memory, or dense memory that goes back to it. `read`:
// what it reads besides.
template <typename Start>
TensorWork started_in_place(const CollectiveCall& call, const Group& group, const at::Tensor& tensor,
                            const Start& start, const at::Tensor& read = {}) {
  call.check(tensor);
  call.check_written(tensor);
  const at::Tensor dense = dense_values(tensor);
  const bool is_own = dense.data_ptr() == tensor.data_ptr();
  TensorWork work = started(group, {.read = read, .written = is_own ? tensor : dense, .result = tensor},
                            [&] { return start(elements_of(dense)); });
  // Autograd and DistributedDataParallel count writes.
  if (is_own && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  return work;
}

// The memory of a tensor that is read, and whose gradient would be lost.
at::Tensor read_by(const CollectiveCall& call, const at::Tensor& tensor) {
  call.check(tensor);
  call.check_unrecorded(tensor);
  return dense_values(tensor);
}

// [n, ...] times `parts` is [parts n, ...]; of 0 dimensions [parts].
std::vector<std::int64_t> rows_times(const at::Tensor& tensor, std::int64_t parts) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  if (sizes.empty()) return {parts};
  sizes.front() *= parts;
  return sizes;
}

BufferView none_like(BufferView view) {
  view.data = nullptr;
  view.count = 0;
  return view;
}

}  // namespace

TensorWork all_reduce_async(const at::Tensor& tensor, const Group& group, ReduceOp op) {
  const CollectiveCall call("all_reduce", group);
  call.check(tensor);
  call.check_computable(tensor);
  return started_in_place(call, group, tensor,
                          [&](BufferView memory) { return group->all_reduce(memory, {.op = op}); });
}

TensorWork broadcast_async(const at::Tensor& tensor, const Group& group, int root) {
  return started_in_place(CollectiveCall("broadcast", group), group, tensor,
                          [&](BufferView memory) { return group->broadcast(memory, root); });
}

TensorWork all_gather_async(const at::Tensor& tensor, const Group& group) {
  const at::Tensor read = read_by(CollectiveCall("all_gather", group), tensor);
  const at::Tensor result = at::empty(rows_times(read, group->size()), read.options());
  return started(group, {.read = read, .written = result, .result = result},
                 [&] { return group->all_gather(elements_of(read), elements_of(result)); });
}

TensorWork reduce_scatter_async(const at::Tensor& tensor, const Group& group, ReduceOp op) {
  const CollectiveCall call("reduce_scatter", group);
  const at::Tensor read = read_by(call, tensor);
  call.check_computable(tensor);
  call.check_divisible(tensor);
  std::vector<std::int64_t> sizes = read.sizes().vec();
  sizes.front() /= group->size();
  const at::Tensor result = at::empty(sizes, read.options());
  return started(group, {.read = read, .written = result, .result = result},
                 [&] { return group->reduce_scatter(elements_of(read), elements_of(result), {.op = op}); });
}

TensorWork all_to_all_async(const at::Tensor& tensor, const Group& group) {
  const CollectiveCall call("all_to_all", group);
  const at::Tensor read = read_by(call, tensor);
  call.check_divisible(tensor);
  const at::Tensor result = at::empty(read.sizes(), read.options());
  return started(group, {.read = read, .written = result, .result = result},
                 [&] { return group->all_to_all(elements_of(read), elements_of(result)); });
}

TensorWork gather_async(const at::Tensor& tensor, const Group& group, int root) {
  const at::Tensor read = read_by(CollectiveCall("gather", group), tensor);
  at::Tensor result;
  if (group->rank() == root) result = at::empty(rows_times(read, group->size()), read.options());
  const BufferView output = result.defined() ? elements_of(result) : none_like(elements_of(read));
  return started(group, {.read = read, .written = result, .result = result},
                 [&] { return group->gather(elements_of(read), output, root); });
}

TensorWork scatter_async(const at::Tensor& output, const at::Tensor& input, const Group& group, int root) {
  const CollectiveCall call("scatter", group);
  call.check(output);
  call.check_written(output);
  at::Tensor read;
  if (group->rank() == root) read = read_by(call, input);
  const auto start = [&](BufferView memory) {
    return group->scatter(read.defined() ? elements_of(read) : none_like(memory), memory, root);
  };
  return started_in_place(call, group, output, start, read);
}

TensorWork send_async(const at::Tensor& tensor, const Group& group, int destination, int tag) {
  const at::Tensor read = read_by(CollectiveCall("send", group), tensor);
  return started(group, {.read = read}, [&] { return group->send(elements_of(read), destination, tag); });
}

TensorWork recv_async(const at::Tensor& tensor, const Group& group, int source, int tag) {
  return started_in_place(CollectiveCall("recv", group), group, tensor,
                          [&](BufferView memory) { return group->recv(memory, source, tag); });
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

namespace {

using ::torch::autograd::variable_list;
// From the gradient of the result to that of the tensor, over all ranks.
using Transpose = std::function<at::Tensor(const at::Tensor& gradient)>;

struct CollectiveBackward : ::torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override;
  std::string name() const override { return "LockstepCollectiveBackward"; }

  std::string operation;
  Group group;
  GradientOptions options;
  at::TensorOptions result_options;
  std::vector<std::int64_t> result_sizes;
  std::int64_t elements = 0;  // the tensor's number of elements
  Transpose transpose;
};

variable_list CollectiveBackward::apply(variable_list&& gradients) {
  const CollectiveCall call(operation, group);
  if (options.before_backward) options.before_backward();
  // Undefined where this rank's loss turned out not to depend on the result: the others' collective needs it all the
  // same.
  const at::Tensor gradient = gradients[0].defined() ? gradients[0] : at::zeros(result_sizes, result_options);
  if (at::GradMode::is_enabled() && gradient.requires_grad()) {
    call.refuse("the gradient of this call can't be differentiated again; call backward() without create_graph");
  }
  const at::NoGradGuard no_grad;
  if (!options.loss_weight) return {transpose(gradient)};
  const std::int64_t weight = options.loss_weight->value_or(1);
  if (weight == 0 && elements > 0) {
    call.refuse(
        fmt::format("this rank's loss has the weight 0, but it gave {} elements that other ranks' losses depend on; "
                    "give 0 rows, or a weight above 0",
                    elements));
  }
  // Weights don't fit into 16 bits. 0 * NaN, of a mean over 0 rows, must not enter a sum.
  const auto wide = at::promote_types(gradient.scalar_type(), at::kFloat);
  const at::Tensor weighted = weight == 0 ? at::zeros_like(gradient, wide) : gradient.to(wide) * weight;
  return {(transpose(weighted) / std::max<std::int64_t>(weight, 1)).to(gradient.scalar_type())};
}

bool is_recorded(const at::Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

void check_has_backward(const CollectiveCall& call, const at::Tensor& tensor, ReduceOp op) {
  if (op == ReduceOp::sum || op == ReduceOp::avg || !tensor.defined() || !is_recorded(tensor)) return;
  call.refuse(fmt::format(
      "the tensor requires a gradient, and {} has no backward; use sum or avg, or pass tensor.detach()", name_of(op)));
}

// `result`, with the way back to `tensor` if that is recorded.
at::Tensor recorded(const char* operation, const at::Tensor& tensor, const Group& group, const GradientOptions& options,
                    at::Tensor result, Transpose transpose) {
  if (!is_recorded(tensor)) return result;
  const auto node = make_node<CollectiveBackward>();
  node->operation = fmt::format("the backward of {}", operation);
  node->group = group;
  node->options = options;
  node->result_options = result.options();
  node->result_sizes = result.sizes().vec();
  node->elements = tensor.numel();
  node->transpose = std::move(transpose);
  node->set_next_edges({::torch::autograd::impl::gradient_edge(tensor)});
  ::torch::autograd::set_history(result, node);
  return result;
}

// Rows of dimension 0, behind zeros or cut, so that there are `rows`.
at::Tensor with_rows(const at::Tensor& tensor, std::int64_t rows) {
  if (tensor.size(0) >= rows) return tensor.slice(0, 0, rows);
  std::vector<std::int64_t> missing = tensor.sizes().vec();
  missing.front() = rows - tensor.size(0);
  return at::cat({tensor, at::zeros(missing, tensor.options())});
}

std::int64_t most_of(const std::vector<std::int64_t>& counts) { return *std::ranges::max_element(counts); }

// The rows of all ranks, of which rank r has counts[r], out of `all`, which has as many of each rank.
at::Tensor without_padding(const at::Tensor& all, const std::vector<std::int64_t>& counts) {
  const std::int64_t longest = most_of(counts);
  std::vector<at::Tensor> parts;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const auto begin = static_cast<std::int64_t>(rank) * longest;
    parts.push_back(all.slice(0, begin, begin + counts[rank]));
  }
  return std::ranges::all_of(counts, [&](std::int64_t count) { return count == longest; }) ? all : at::cat(parts);
}

// The values of `tensor`, whose dimension 0 counts rows.
at::Tensor rows_in(const CollectiveCall& call, const at::Tensor& tensor) {
  call.check(tensor);
  if (tensor.dim() == 0) call.refuse("the tensor has 0 dimensions, and so no rows; give tensor.view(1)");
  return dense_values(tensor);
}

// Collective: the rows of each rank. Mismatch if rows differ in shape or dtype, or only some require a gradient.
std::vector<std::int64_t> counts_of(const char* call, const at::Tensor& tensor, const Group& group) {
  std::vector<std::int64_t> row = tensor.sizes().vec();
  row.front() = -1;
  // The backward is a collective: a rank that records none would let the others wait.
  const std::string kind = fmt::format("{} [{}]{}", dtype_name(tensor), fmt::join(row, ", "),
                                       is_recorded(tensor) ? " that require a gradient" : "");
  return comm::row_counts(*group, call, tensor.size(0), kind);
}

// The transpose of gather: the sum over the ranks of their parts for this rank's rows.
at::Tensor scatter_sums(const at::Tensor& all, const Group& group, const std::vector<std::int64_t>& counts) {
  const std::int64_t longest = most_of(counts);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : all.split_with_sizes(counts)) parts.push_back(with_rows(part, longest));
  const at::Tensor own = reduce_scatter_async(at::cat(parts), group).wait();
  return own.slice(0, 0, counts[static_cast<std::size_t>(group->rank())]);
}

}  // namespace

at::Tensor all_reduced(const at::Tensor& tensor, const Group& group, ReduceOp op, const GradientOptions& options) {
  const CollectiveCall call("all_reduced", group);
  call.check(tensor);
  check_has_backward(call, tensor, op);
  const auto reduce = [group, op](const at::Tensor& values) {
    at::Tensor result = values.detach().clone(at::MemoryFormat::Contiguous);
    return all_reduce_async(result, group, op).wait();
  };
  return recorded("all_reduced", tensor, group, options, reduce(tensor), reduce);
}

at::Tensor all_gather(const at::Tensor& tensor, const Group& group, const GradientOptions& options) {
  at::Tensor result = all_gather_async(values_of(tensor), group).wait();
  return recorded("all_gather", tensor, group, options, result, [group, sizes = tensor.sizes().vec()](const auto& dy) {
    return reduce_scatter_async(dy, group).wait().view(sizes);
  });
}

at::Tensor all_gather_rows(const at::Tensor& tensor, const Group& group, const GradientOptions& options) {
  const at::Tensor rows = rows_in(CollectiveCall("all_gather_rows", group), tensor);
  const std::vector<std::int64_t> counts = counts_of("all_gather_rows", tensor, group);
  const at::Tensor all = all_gather_async(with_rows(rows, most_of(counts)), group).wait();
  return recorded("all_gather_rows", tensor, group, options, without_padding(all, counts),
                  [group, counts](const at::Tensor& dy) { return scatter_sums(dy, group, counts); });
}

at::Tensor gather_rows(const at::Tensor& tensor, const Group& group, int root) {
  const at::Tensor rows = rows_in(CollectiveCall("gather_rows", group), tensor.detach());
  const std::vector<std::int64_t> counts = counts_of("gather_rows", rows, group);
  const at::Tensor all = gather_async(with_rows(rows, most_of(counts)), group, root).wait();
  return all.defined() ? without_padding(all, counts) : all;
}

at::Tensor reduce_scatter(const at::Tensor& tensor, const Group& group, ReduceOp op, const GradientOptions& options) {
  check_has_backward(CollectiveCall("reduce_scatter", group), tensor, op);
  at::Tensor result = reduce_scatter_async(values_of(tensor), group, op).wait();
  return recorded("reduce_scatter", tensor, group, options, result, [group, op](const at::Tensor& dy) {
    const at::Tensor all = all_gather_async(dy, group).wait();
    return op == ReduceOp::avg ? all / group->size() : all;
  });
}

at::Tensor all_to_all(const at::Tensor& tensor, const Group& group, const GradientOptions& options) {
  at::Tensor result = all_to_all_async(values_of(tensor), group).wait();
  return recorded("all_to_all", tensor, group, options, result,
                  [group](const at::Tensor& dy) { return all_to_all_async(dy, group).wait(); });
}

}  // namespace lockstep::libtorch
