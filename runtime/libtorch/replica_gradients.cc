// SPDX-License-Identifier: Apache-2.0
// The way of the gradients in .grad into the arena and back.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/device/not_finite.h"
#include "runtime/libtorch/replica_impl.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

// `dense` has memory without gaps, on the CPU.
bool is_zero(const at::Tensor& dense) {
  const auto* const bytes = static_cast<const char*>(dense.data_ptr());
  return dense.nbytes() == 0 || (bytes[0] == 0 && std::memcmp(bytes, bytes + 1, dense.nbytes() - 1) == 0);
}

}  // namespace

// Float32 for 16 bits on the CPU: a gradient is weighted, summed and divided there, and rounded once, into .grad. NCCL
// sums in the parameters' dtype.
DType ReplicaImpl::reduced_as(const at::Tensor& parameter) const {
  const DType own = *dtype_of(parameter.scalar_type());
  return size_of(own) == 2 && group_->device().kind == DeviceKind::cpu ? DType::f32 : own;
}

bool ReplicaImpl::lies_in_arena(const Parameter& parameter) {
  const at::Tensor& gradient = parameter.tensor.grad();
  return parameter.view.defined() && gradient.defined() && gradient.layout() == at::kStrided &&
         gradient.data_ptr() == parameter.view.data_ptr();
}

// A gradient in the arena is about to be overwritten, so it is copied; most often it was zeroed, and is dropped. On a
// device zeros can't be seen without a wait, and the copy has memory that stays: torch's allocator may give freed
// memory to another stream's work at once. The copy is ordered after the step's stream, which has written the arena,
// and before it, which writes the arena next.
void ReplicaImpl::stash_grad(Parameter& parameter) {
  if (std::exchange(parameter.is_set_aside, true) || !parameter.tensor.grad().defined()) return;
  const at::NoGradGuard no_grad;
  const bool is_in_arena = !trainer_->is_alone() && lies_in_arena(parameter);
  at::Tensor old = std::exchange(parameter.tensor.mutable_grad(), at::Tensor());
  parameter.had_gradient = true;
  if (is_in_arena && !mark_) {
    if (is_zero(old)) return;
    old = old.clone();
  } else if (is_in_arena) {
    const StreamView here = current_stream(group_->device());
    order(stream_, here);
    if (!parameter.scratch.defined()) parameter.scratch = at::empty_like(old);
    old = parameter.scratch.copy_(old);
    order(here, stream_);
  }
  // A gradient of an earlier micro-batch may be set aside already.
  parameter.before = parameter.before.defined() ? parameter.before + old : old;
}

void ReplicaImpl::take(Parameter& parameter, int index) {
  if (!parameter.tensor.grad().defined()) return;
  check_gradient(parameter);
  // Autograd has a stream for each parameter, that in which it was wrapped, and it need not be the step's.
  const StreamView here = current_stream(group_->device());
  order(stream_, here);
  put_into_arena(parameter);
  order(here, stream_);
  parameter.taken = true;
  if (in_capture_) return;
  const OnStream ordered(*group_, stream_);
  trainer_->reducer()->mark_ready(index);
}

void ReplicaImpl::look_at_gradient(const Parameter& parameter) {
  if (!wrong_ || **trainer_->weight() == 0 || wrong_->has_found(trainer_->step())) return;
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!gradient.defined()) return;
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  const auto dtype = dtype_of(values.scalar_type());
  if (!dtype) return;
  const at::Tensor whole = values.is_non_overlapping_and_dense() ? values : values.contiguous();
  const std::int64_t at = first_not_finite_on_host(whole.data_ptr(), whole.numel(), *dtype);
  if (at != kAllFinite) wrong_->found(trainer_->step(), parameter.name, at);
}

void ReplicaImpl::put_into_arena(Parameter& parameter) {
  const at::NoGradGuard no_grad;
  // The undivided sum in the arena must not show in .grad.
  const at::Tensor gradient = std::exchange(parameter.tensor.mutable_grad(), at::Tensor());
  at::Tensor& view = parameter.view;
  if (in_capture_) {  // a product of 16 bits would round the scale, too
    const bool is_narrow = size_of(*dtype_of(gradient.scalar_type())) == 2;
    at::mul_out(view, is_narrow ? gradient.to(at::kFloat) : gradient, scale_);
    return;
  }
  const double factor = this->factor();
  if (!trainer_->reducer()->overwrites()) {
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
}

double ReplicaImpl::factor() const {
  const bool has_weight_in_it = options_.weigh_outputs || options_.loss == Loss::sum;
  const std::int64_t own = **trainer_->weight();
  const std::int64_t weight = has_weight_in_it ? std::min<std::int64_t>(own, 1) : own;
  return static_cast<double>(weight) / static_cast<double>(trainer_->reducer()->weight_unit());
}

void ReplicaImpl::restore_grad(Parameter& parameter) {
  const at::NoGradGuard no_grad;
  if (parameter.before.defined()) parameter.view.add_(std::exchange(parameter.before, at::Tensor()));
  if (!parameter.result.is_same(parameter.view)) parameter.result.copy_(parameter.view);
  parameter.tensor.mutable_grad() = parameter.result;
}

}  // namespace lockstep::libtorch
