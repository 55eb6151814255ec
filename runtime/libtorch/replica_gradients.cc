// SPDX-License-Identifier: Apache-2.0
// The way of the gradients from .grad into the arena, and back.
#include "runtime/libtorch/replica_engine.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"
#include "runtime/device/not_finite.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

// `dense` has memory without gaps, on the CPU.
bool is_zero(const at::Tensor& dense) {
  const auto* const bytes = static_cast<const char*>(dense.data_ptr());
  return dense.nbytes() == 0 || (bytes[0] == 0 && std::memcmp(bytes, bytes + 1, dense.nbytes() - 1) == 0);
}

}  // namespace

bool ReplicaEngine::may_need_no_arena() const {
  return group->size() == 1 && !options.comm_hook.run && options.comm_hook.name.empty() &&
         !options.reproducible.is_on();
}

bool ReplicaEngine::needs_no_arena() const {
  return may_need_no_arena() && !trainer.is_in_no_sync() && !trainer.accumulating();
}

// Collective the first time: before the first gradient is written, so that addresses never change.
void ReplicaEngine::plan() {
  if (is_planned_) return;
  if (!trainer.reducer()) trainer.make_reducer();
  Reducer& reducer = *trainer.reducer();
  std::vector<char> in_graph(gradients_.size(), 0);
  for (const int index : order_) in_graph[static_cast<std::size_t>(index)] = 1;
  for (int i = static_cast<int>(gradients_.size()) - 1; i >= 0; --i) {
    if (!in_graph[static_cast<std::size_t>(i)]) order_.push_back(i);
  }
  // Shards are mostly as large as rank 0's first: those need no multiplication.
  const bool are_multiplied = !options.weigh_outputs && options.loss == Loss::mean;
  std::int64_t unit = are_multiplied ? unit_.value_or(std::max<std::int64_t>(trainer.weight()->value_or(1), 1)) : 1;
  // A fixed unit in place of the first weight, which differs with the number of ranks.
  if (const Reproducible& same = options.reproducible; same.is_on() && are_multiplied) {
    unit = data::shard_rows(same.batch_size, same.virtual_shards);
  }
  reducer.plan_order(order_, unit);
  unit_ = reducer.weight_unit();
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    Gradient& slot = gradients_[i];
    const DType reduced = reduced_as(tensor(i));
    void* const memory = reducer.gradient_data(static_cast<int>(i), reduced);
    const auto of_view = at::TensorOptions().dtype(scalar_type_of(reduced)).device(tensor(i).device());
    slot.view = at::from_blob(
        memory, tensor(i).sizes(), slot.strides, [arena = reducer.memory()](void*) {}, of_view, tensor(i).device());
    slot.result = slot.view;
    if (shares.are_cut()) {
      slot.result = shares.placeholder(i);
    } else if (slot.view.dtype() != tensor(i).dtype()) {
      slot.result = at::empty_strided(tensor(i).sizes(), slot.strides, tensor(i).options());
    }
  }
  is_planned_ = true;
}

void ReplicaEngine::plan_early() {
  if (is_planned_ || may_need_no_arena()) return;
  const OnCurrentStream ordered(*group);
  plan();
}

double ReplicaEngine::factor() const {
  const bool has_weight_in_it = options.weigh_outputs || options.loss == Loss::sum;
  const std::int64_t own = **trainer.weight();
  const std::int64_t weight = has_weight_in_it ? std::min<std::int64_t>(own, 1) : own;
  return static_cast<double>(weight) / static_cast<double>(trainer.reducer()->weight_unit());
}

bool ReplicaEngine::lies_in_arena(std::size_t index) const {
  const at::Tensor& gradient = tensor(index).grad();
  const at::Tensor& view = gradients_[index].view;
  return view.defined() && gradient.defined() && gradient.layout() == at::kStrided &&
         gradient.data_ptr() == view.data_ptr();
}

// A gradient in the arena is about to be overwritten, so it is copied; most often it was zeroed, and is dropped. On a
// device zeros can't be seen without a wait, and the copy has memory that stays: torch's allocator may give freed
// memory to another stream's work at once. The copy is ordered after the step's stream, which has written the arena,
// and before it, which writes the arena next.
void ReplicaEngine::set_aside(std::size_t index) {
  Gradient& slot = gradients_[index];
  if (std::exchange(slot.is_set_aside, true) || !tensor(index).grad().defined()) return;
  const at::NoGradGuard no_grad;
  const bool is_in_arena = !trainer.is_alone() && lies_in_arena(index);
  at::Tensor old = std::exchange(tensor(index).mutable_grad(), at::Tensor());
  slot.had_gradient = true;
  if (is_in_arena && !mark_) {
    if (is_zero(old)) return;
    old = old.clone();
  } else if (is_in_arena) {
    const StreamView here = current_stream(group->device());
    order(stream_, here);
    if (!slot.scratch.defined()) slot.scratch = at::empty_like(old);
    old = slot.scratch.copy_(old);
    order(here, stream_);
  }
  // A gradient of an earlier micro-batch may be set aside already.
  slot.earlier = slot.earlier.defined() ? slot.earlier + old : old;
}

// `put` writes the view, ordered with the step's stream: autograd has a stream for each parameter, that in which it was
// wrapped, and it need not be the step's.
template <typename Put>
void ReplicaEngine::move_into_arena(std::size_t index, Put put) {
  check_gradient(index);
  const StreamView here = current_stream(group->device());
  order(stream_, here);
  {
    const at::NoGradGuard no_grad;
    // The undivided sum in the arena must not show in .grad.
    put(gradients_[index].view, std::exchange(tensor(index).mutable_grad(), at::Tensor()));
  }
  order(here, stream_);
  gradients_[index].is_taken = true;
}

void ReplicaEngine::take(std::size_t index) {
  if (!tensor(index).grad().defined()) return;
  move_into_arena(index, [&](at::Tensor& view, const at::Tensor& gradient) {
    const double factor = this->factor();
    if (!trainer.reducer()->overwrites()) {
      // Without rows a mean may be NaN: then nothing is added.
      if (factor > 0) view.add_(gradient, factor);
    } else if (factor == 0) {
      view.zero_();
    } else if (factor == 1) {
      view.copy_(gradient);
    } else if (gradient.dtype() == view.dtype()) {
      at::mul_out(view, gradient, at::scalar_tensor(factor, at::kDouble));
    } else {
      view.copy_(gradient).mul_(factor);  // a product of 16 bits would be rounded to them
    }
  });
  mark_ready(index);
}

void ReplicaEngine::take_captured(std::size_t index, const at::Tensor& scale) {
  if (!tensor(index).grad().defined()) return;
  move_into_arena(index, [&](at::Tensor& view, const at::Tensor& gradient) {
    const bool is_narrow = size_of(*dtype_of(gradient.scalar_type())) == 2;
    at::mul_out(view, is_narrow ? gradient.to(at::kFloat) : gradient, scale);  // 16 bits would round the scale, too
  });
}

at::Tensor ReplicaEngine::captured(std::size_t index) {
  return gradients_[index].is_taken ? gradients_[index].view
                                    : std::exchange(tensor(index).mutable_grad(), at::Tensor());
}

void ReplicaEngine::bring_gradient(std::size_t index, const at::Tensor& gradient) {
  // A mean over no rows may be NaN.
  if (**trainer.weight() == 0) gradient.zero_();
  gradients_[index].is_used = true;
  gradients_[index].is_taken = !trainer.is_alone();
  if (gradients_[index].is_taken) return mark_ready(index);
  tensor(index).mutable_grad() = gradient;
  look_at(index);
}

void ReplicaEngine::mark_ready(std::size_t index) {
  const OnStream ordered(*group, stream_);
  trainer.reducer()->mark_ready(static_cast<int>(index));
}

void ReplicaEngine::look_at(std::size_t index) {
  if (!wrong_ || **trainer.weight() == 0 || wrong_->has_found(trainer.step())) return;
  const at::Tensor& gradient = tensor(index).grad();
  if (!gradient.defined()) return;
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  const auto dtype = dtype_of(values.scalar_type());
  if (!dtype) return;
  const at::Tensor whole = values.is_non_overlapping_and_dense() ? values : values.contiguous();
  const std::int64_t at = first_not_finite_on_host(whole.data_ptr(), whole.numel(), *dtype);
  if (at != kAllFinite) wrong_->found(trainer.step(), parameters()[index].name, at);
}

void ReplicaEngine::restore(std::size_t index) {
  Gradient& slot = gradients_[index];
  const at::NoGradGuard no_grad;
  if (slot.earlier.defined()) slot.view.add_(std::exchange(slot.earlier, at::Tensor()));
  if (!slot.result.is_same(slot.view)) slot.result.copy_(slot.view);
  tensor(index).mutable_grad() = slot.result;
}

void ReplicaEngine::restore_alone() {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    at::Tensor& gradient = tensor(i).mutable_grad();
    if (gradients_[i].earlier.defined()) {
      gradient = std::exchange(gradients_[i].earlier, {});
    } else if (gradients_[i].is_set_aside && gradient.defined()) {
      gradient.zero_();
    }
  }
}

void ReplicaEngine::order(StreamView earlier, StreamView later) {
  if (earlier == later) return;
  mark_->record(earlier);
  mark_->block(later);
}

void ReplicaEngine::check_gradient(std::size_t index) const {
  const std::string& name = parameters()[index].name;
  const at::Tensor& result = gradients_[index].result;
  if (gradients_[index].is_taken) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: '{}' got a second gradient in one backward, in step {}: a checkpointed "
                    "part, or a backward within the backward, shares it; set DdpOptions::overlap to false",
                    name, trainer.step()));
  }
  const at::Tensor& gradient = tensor(index).grad();
  if (gradient.layout() != at::kStrided) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: the gradient of '{}' is sparse; make it dense (EmbeddingOptions::sparse)", name));
  }
  if (gradient.scalar_type() != result.scalar_type() || gradient.sizes() != result.sizes()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the gradient of '{}' has {} elements of {}, when the module was wrapped "
                    "it had {} of {}; wrap the module again after changing it",
                    name, gradient.numel(), c10::toString(gradient.scalar_type()), result.numel(),
                    c10::toString(result.scalar_type())));
  }
  if (gradient.requires_grad()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the gradient of '{}' has a graph of its own (create_graph), which no "
                    "all-reduce keeps; take such gradients with torch::autograd::grad",
                    name));
  }
}

}  // namespace lockstep::libtorch
