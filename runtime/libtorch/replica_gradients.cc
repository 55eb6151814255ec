// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/replica_gradients.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"
#include "runtime/base/logging.h"
#include "runtime/device/not_finite.h"
#include "runtime/libtorch/autograd_graph.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

// `dense` has memory without gaps, on the CPU.
bool is_zero(const at::Tensor& dense) {
  const auto* const bytes = static_cast<const char*>(dense.data_ptr());
  return dense.nbytes() == 0 || (bytes[0] == 0 && std::memcmp(bytes, bytes + 1, dense.nbytes() - 1) == 0);
}

// Whether write_product() does what torch's operators would do. Torch's have all threads of the program; and a gradient
// that lies in `view` already is only read, by whoever looks whether it is finite.
bool is_one_pass(const at::Tensor& view, const at::Tensor& gradient, double factor) {
  const bool is_known = view.scalar_type() == at::kFloat || view.scalar_type() == at::kDouble;
  return is_known && view.is_cpu() && gradient.dtype() == view.dtype() && gradient.strides() == view.strides() &&
         !gradient.is_neg() && (factor != 1 || gradient.data_ptr() != view.data_ptr()) && at::get_num_threads() == 1;
}

}  // namespace

Gradients::Gradients(TrainedModule& module, ReplicaShards& shards)
    : module_(module),
      shards_(shards),
      trainer_(module.trainer),
      slots_(module.parameters().size()),
      stream_(current_stream(module.group->device())) {
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].strides = gradient_strides(tensor(i));
  const NotFinite not_finite = module_.options.not_finite;
  if (!is_on_device() && module_.group->size() == 1 && not_finite != NotFinite::ignore) {
    wrong_.emplace(not_finite, module_.group);
  }
}

bool Gradients::may_need_no_arena() const {
  const DdpOptions& options = module_.options;
  return module_.group->size() == 1 && !options.comm_hook.run && options.comm_hook.name.empty() &&
         !options.reproducible.is_on();
}

bool Gradients::needs_no_arena() const {
  return may_need_no_arena() && !trainer_.is_in_no_sync() && !trainer_.accumulating();
}

// With shards the order is fixed: an optimizer's state belongs to a shard.
void Gradients::order_by(std::span<const at::Tensor> outputs) {
  if (order_.empty() && !shards_.are_cut()) order_ = graph_order(outputs, module_.numbers());
}

// Collective the first time: before the first gradient is written, so that addresses never change.
void Gradients::plan() {
  if (is_planned_) return;
  if (!trainer_.reducer()) trainer_.make_reducer();
  Reducer& reducer = *trainer_.reducer();
  std::vector<char> in_graph(slots_.size(), 0);
  for (const int index : order_) in_graph[static_cast<std::size_t>(index)] = 1;
  for (int i = static_cast<int>(slots_.size()) - 1; i >= 0; --i) {
    if (!in_graph[static_cast<std::size_t>(i)]) order_.push_back(i);
  }
  const std::vector<ParameterSpec> buffers = module_.micro_batch_buffers.specs();
  for (std::size_t i = 0; i < buffers.size(); ++i) order_.push_back(static_cast<int>(slots_.size() + i));
  // Micro-batches are mostly as large as rank 0's first: those need no multiplication.
  const bool are_multiplied = !module_.options.weight_outputs && module_.options.loss == Loss::mean;
  std::int64_t unit = are_multiplied ? unit_.value_or(std::max<std::int64_t>(trainer_.weight()->value_or(1), 1)) : 1;
  // A fixed unit in place of the first weight, which differs with the number of ranks.
  if (const Reproducible& same = module_.options.reproducible; same.is_on() && are_multiplied) {
    unit = data::micro_batch_rows(same.global_batch, same.micro_batches);
  }
  reducer.plan_order(order_, unit);
  // All ranks have rank 0's order and unit now. The order decides the addresses, so they are asked for after it.
  unit_ = reducer.weight_unit();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const DType reduced = module_.reduced_as(tensor(i));
    void* const memory = reducer.gradient_data(static_cast<int>(i), reduced);
    const auto of_view = at::TensorOptions().dtype(scalar_type_of(reduced)).device(tensor(i).device());
    // Each view holds the arena: the program may keep a .grad for longer than the Reducer lives.
    slot.view = at::from_blob(
        memory, tensor(i).sizes(), slot.strides, [arena = reducer.memory()](void*) {}, of_view, tensor(i).device());
    slot.result = slot.view;
    if (shards_.are_cut()) {
      slot.result = shards_.adopt(i, slot.view);
    } else if (slot.view.dtype() != tensor(i).dtype()) {
      slot.result = at::empty_strided(tensor(i).sizes(), slot.strides, tensor(i).options());
    }
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    void* const memory = reducer.gradient_data(static_cast<int>(slots_.size() + i), buffers[i].dtype);
    const auto of_view = at::TensorOptions().dtype(scalar_type_of(buffers[i].dtype)).device(device_of(*module_.group));
    buffer_sums_.push_back(at::from_blob(memory, buffers[i].shape, of_view));
  }
  is_planned_ = true;
}

void Gradients::plan_early() {
  if (is_planned_ || may_need_no_arena()) return;
  const OnCurrentStream ordered(*module_.group);
  plan();
}

void Gradients::begin() {
  begin_in_current_stream();
  shards_.set_has_means(false);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    // A zero_grad() of torch's class, which knows shards alone.
    if (!shards_.gradient_that_tells(i).defined()) tensor(i).mutable_grad().reset();
  }
  // The scope covers the Reducer's calls only: the group's stream goes with its program, and one backward may have
  // several replicas, each with a stream.
  const OnStream ordered(*module_.group, stream_);
  if (!needs_no_arena()) plan();
  trainer_.begin(needs_no_arena());
}

void Gradients::begin_in_current_stream() {
  stream_ = current_stream(module_.group->device());
  for (Slot& slot : slots_) {
    slot.is_placed = slot.is_taken = slot.is_set_aside = slot.is_used = false;
    slot.finite.reset();
    // Between the micro-batches of a step .grad is undefined, so the first one's answer is kept for the last.
    slot.had_gradient = slot.had_gradient && trainer_.accumulating();
  }
}

// The earlier gradient may lie there. A device's streams would have to be put in order first.
at::Tensor Gradients::place(std::size_t index) {
  Slot& slot = slots_[index];
  if (is_on_device() || slot.is_placed || slot.is_taken) return {};
  if (trainer_.is_alone()) return place_alone(index);
  if (!trainer_.reducer()->overwrites() || slot.view.scalar_type() != tensor(index).scalar_type() ||
      !slot.view.is_contiguous() || trainer_.is_declared_unused(static_cast<int>(index))) {
    return {};
  }
  set_aside(index);
  slot.is_placed = true;
  return slot.view.detach();
}

// The memory of .grad if that is zeros, to which torch would add; without a .grad that of the last one, unless the
// program still has it.
at::Tensor Gradients::place_alone(std::size_t index) {
  at::Tensor& gradient = tensor(index).mutable_grad();
  if (**trainer_.weight() == 0 || shards_.are_cut() || !tensor(index).is_contiguous()) return {};
  Slot& slot = slots_[index];
  if (gradient.defined()) {
    const bool is_plain = gradient.layout() == at::kStrided && gradient.is_contiguous() && !gradient.is_neg() &&
                          !gradient.requires_grad() && gradient.dtype() == tensor(index).dtype() &&
                          gradient.sizes() == tensor(index).sizes();
    if (!is_plain || !is_zero(gradient)) return {};
    slot.own = std::exchange(gradient, at::Tensor());
  } else if (!slot.own.defined() || slot.own.storage().use_count() > 1) {
    slot.own = at::empty(tensor(index).sizes(), tensor(index).options());
  }
  slot.is_placed = true;
  return slot.own.detach();
}

void Gradients::prepare(std::size_t index, bool has_gradient) {
  if (has_gradient) trainer_.require_used(static_cast<int>(index));
  slots_[index].is_used |= has_gradient;
  // Without an arena autograd adds to .grad itself. A mean over no rows, which may be NaN, is kept from it.
  if (!trainer_.is_alone() || **trainer_.weight() == 0) set_aside(index);
}

bool Gradients::lies_in_arena(std::size_t index) const {
  const at::Tensor& gradient = tensor(index).grad();
  const at::Tensor& view = slots_[index].view;
  return view.defined() && gradient.defined() && gradient.layout() == at::kStrided &&
         gradient.data_ptr() == view.data_ptr();
}

// A gradient in the arena is about to be overwritten, so it is copied; most often it was zeroed, and is dropped. On a
// device zeros can't be seen without a wait.
void Gradients::set_aside(std::size_t index) {
  Slot& slot = slots_[index];
  if (std::exchange(slot.is_set_aside, true) || !tensor(index).grad().defined()) return;
  const at::NoGradGuard no_grad;
  const bool is_in_arena = !trainer_.is_alone() && lies_in_arena(index);
  at::Tensor old = std::exchange(tensor(index).mutable_grad(), at::Tensor());
  slot.had_gradient = true;
  if (is_in_arena && !is_on_device()) {
    if (is_zero(old)) return;
    old = old.clone();
  } else if (is_in_arena) {
    const StreamView here = current_stream(module_.group->device());
    // The step's stream has written the arena: without this order the copy would read a sum that is under way.
    put_in_order(stream_, here);
    // Memory that stays: torch's allocator may give freed memory to another stream's work at once.
    if (!slot.scratch.defined()) slot.scratch = at::empty_like(old);
    old = slot.scratch.copy_(old);
    // The step's stream writes the arena next: without this order it would overwrite what the copy has yet to read.
    put_in_order(here, stream_);
  }
  // A gradient of an earlier micro-batch may be set aside already.
  slot.earlier = slot.earlier.defined() ? slot.earlier + old : old;
}

// Autograd has a stream for each parameter, that in which it was wrapped, and it need not be the step's.
void Gradients::take(std::size_t index) {
  if (is_captured_ ? needs_no_arena() : trainer_.is_alone()) return keep_in_place(index);
  if (!tensor(index).grad().defined()) return;
  check(index);
  const StreamView here = current_stream(module_.group->device());
  put_in_order(stream_, here);  // the last step's sum, and set_aside()'s copy of it, are done with the view
  bool is_finite = false;
  {
    const at::NoGradGuard no_grad;
    // The undivided sum in the arena must not show in .grad.
    at::Tensor gradient = std::exchange(tensor(index).mutable_grad(), at::Tensor());
    Slot& slot = slots_[index];
    is_finite = !is_captured_ && this->is_finite(index, gradient, factor());
    if (slot.is_placed && gradient.is_set_to(slot.view)) gradient = slot.view;
    is_finite |= write(slot.view, gradient);
  }
  put_in_order(here, stream_);  // mark_ready() sends the view in the step's stream
  slots_[index].is_taken = true;
  if (is_finite) trainer_.reducer()->declare_finite(static_cast<int>(index));
  if (!is_captured_) mark_ready(index);
}

// Whoever expects a gradient to be finite leaves room for this factor.
bool Gradients::is_finite(std::size_t index, const at::Tensor& gradient, double factor) {
  const at::Tensor finite = std::exchange(slots_[index].finite, {});
  return finite.defined() && gradient.defined() && factor <= kLargestFactor && gradient.is_set_to(finite);
}

bool Gradients::write(at::Tensor& view, const at::Tensor& gradient) const {
  if (is_captured_) {
    const bool is_narrow = size_of(*dtype_of(gradient.scalar_type())) == 2;
    at::mul_out(view, is_narrow ? gradient.to(at::kFloat) : gradient, scale_);  // 16 bits would round the scale, too
    return false;
  }
  const double factor = this->factor();
  if (!trainer_.reducer()->overwrites()) {
    // Without rows a mean may be NaN: then nothing is added.
    if (factor > 0) view.add_(gradient, factor);
  } else if (factor == 0) {
    view.zero_();
  } else if (is_one_pass(view, gradient, factor)) {
    return write_product(view.data_ptr(), gradient.data_ptr(), view.numel(), *dtype_of(view.scalar_type()), factor);
  } else if (factor == 1) {
    view.copy_(gradient);  // nothing, if the view is the gradient itself
  } else if (gradient.dtype() == view.dtype()) {
    at::mul_out(view, gradient, at::scalar_tensor(factor, at::kDouble));
  } else {
    view.copy_(gradient).mul_(factor);  // a product of 16 bits would be rounded to them
  }
  return false;
}

void Gradients::bring(std::size_t index, const at::Tensor& gradient) {
  // A mean over no rows may be NaN.
  if (**trainer_.weight() == 0) gradient.zero_();
  slots_[index].is_used = true;
  slots_[index].is_taken = !trainer_.is_alone();
  if (slots_[index].is_taken) return mark_ready(index);
  tensor(index).mutable_grad() = gradient;
  keep_in_place(index);
}

void Gradients::mark_ready(std::size_t index) {
  const OnStream ordered(*module_.group, stream_);
  trainer_.reducer()->mark_ready(static_cast<int>(index));
}

void Gradients::keep_in_place(std::size_t index) {
  Slot& slot = slots_[index];
  at::Tensor& gradient = tensor(index).mutable_grad();
  const bool is_known = is_finite(index, gradient, 1);
  if (std::exchange(slot.is_set_aside, false)) {  // this rank has no rows: what was there counts, or zeros
    if (slot.earlier.defined()) {
      gradient = std::exchange(slot.earlier, {});
    } else if (gradient.defined()) {
      gradient.zero_();
    }
    return;
  }
  if (is_known || !wrong_ || is_captured_ || !gradient.defined() || wrong_->has_found(trainer_.step())) return;
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  const auto dtype = dtype_of(values.scalar_type());
  if (!dtype) return;
  const at::Tensor whole = values.is_non_overlapping_and_dense() ? values : values.contiguous();
  const std::int64_t at = first_not_finite_on_host(whole.data_ptr(), whole.numel(), *dtype);
  if (at != kAllFinite) wrong_->found(trainer_.step(), module_.parameters()[index].name, at);
}

void Gradients::finish(trace::Time backward_began) {
  if (trainer_.is_alone()) {
    tell_of_unused();
    return trainer_.finish(backward_began);
  }
  take_rest();
  bring_buffers();
  {
    const OnStream ordered(*module_.group, stream_);
    trainer_.finish();
  }
  // Torch's current stream here is that of the thread that called backward. It writes .grad from now on, and must find
  // the sums in the arena.
  put_in_order(stream_, current_stream(module_.group->device()));
  if (!trainer_.is_synchronized()) return;  // earlier gradients stay aside until the sum is whole
  shards_.clear();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    // Next to an earlier gradient the answer is not worth a device's wait.
    slot.is_used = is_on_device() && slot.had_gradient ? slot.was_used : is_used(i);
    // Torch leaves .grad undefined where no row depends on the parameter.
    if (slot.had_gradient || slot.is_used) restore(i);
  }
  tell_of_unused();
  shards_.set_has_means(shards_.are_cut());
}

std::string Gradients::finish_buffers() {
  if (!trainer_.is_synchronized()) return "";
  const OnCurrentStream ordered(*module_.group);
  return module_.micro_batch_buffers.finish_step(buffer_sums_, *module_.group);
}

// The last of a micro-batch, for the last bucket.
void Gradients::bring_buffers() {
  if (buffer_sums_.empty()) return;
  const StreamView here = current_stream(module_.group->device());
  put_in_order(stream_, here);
  const auto& micro_batch = trainer_.micro_batch();
  module_.micro_batch_buffers.add_to(buffer_sums_, micro_batch->end - micro_batch->begin);
  put_in_order(here, stream_);
  for (std::size_t i = 0; i < buffer_sums_.size(); ++i) mark_ready(slots_.size() + i);
}

// Takes the gradients that wait for the end of backward, and those of parameters that it has not reached. There .grad
// may hold an earlier step's gradient, which is set aside first: else take() would count it as one of this step's.
void Gradients::take_rest() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].is_taken || trainer_.is_declared_unused(static_cast<int>(i))) continue;
    set_aside(i);
    take(i);
  }
}

void Gradients::restore(std::size_t index) {
  Slot& slot = slots_[index];
  const at::Tensor earlier = std::exchange(slot.earlier, {});
  if (shards_.are_cut()) return shards_.give_mean(index);  // `earlier` is zeros, or the backward was refused
  const at::NoGradGuard no_grad;
  // In the view, before it is rounded into `result`: else a gradient of 16 bits would be rounded twice.
  if (earlier.defined()) slot.view.add_(earlier);
  if (!slot.result.is_same(slot.view)) slot.result.copy_(slot.view);
  tensor(index).mutable_grad() = slot.result;
}

bool Gradients::is_used(std::size_t index) const {
  const auto number = static_cast<int>(index);
  if (!is_on_device()) return trainer_.reducer()->used_anywhere(number);
  return (slots_[index].is_taken && **trainer_.weight() > 0) ||
         (!trainer_.is_declared_unused(number) && trainer_.reducer()->used_anywhere(number));
}

void Gradients::tell_of_unused() {
  if (unused_are_told_ || std::ranges::none_of(slots_, &Slot::is_used)) return;  // or no rank has rows
  std::vector<std::string> names;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.was_used && !slot.is_used) names.push_back("'" + module_.parameters()[i].name + "'");
    slot.was_used |= slot.is_used;
  }
  if (names.empty() || module_.group->rank() != 0) return;
  unused_are_told_ = true;
  const std::size_t shown = std::min<std::size_t>(names.size(), 4);
  log_warn(
      "DistributedDataParallel: in step {} no rank's loss depends on {}{}, which had gradients in earlier steps. If "
      "that is not meant, look for detach() and NoGradGuard, and evaluate outside of the Autocast scope in which you "
      "train, because Autocast reuses the casts that it made without a graph. This is logged once",
      trainer_.step(), fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      names.size() > shown ? fmt::format(" and {} more parameters", names.size() - shown) : "");
}

void Gradients::give_up() noexcept {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    at::Tensor& earlier = slots_[i].earlier;
    if (earlier.defined()) tensor(i).mutable_grad() = std::exchange(earlier, {});
  }
  // Asked before the Trainer's call, which ends the step.
  if (trainer_.in_step() && module_.group->size() > 1) is_half_done_ = true;
  trainer_.give_up();
}

void Gradients::forget_earlier() noexcept {
  for (Slot& slot : slots_) slot.earlier.reset();
}

void Gradients::leave() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!lies_in_arena(i)) continue;
    put_in_order(stream_, current_stream(module_.group->device()));  // the last step may have been in another
    tensor(i).mutable_grad() = is_half_done_ ? at::Tensor() : slots_[i].view.clone();
  }
}

double Gradients::factor() const {
  const bool has_weight_in_it = module_.options.weight_outputs || module_.options.loss == Loss::sum;
  const std::int64_t own = **trainer_.weight();
  const std::int64_t weight = has_weight_in_it ? std::min<std::int64_t>(own, 1) : own;
  return static_cast<double>(weight) / static_cast<double>(trainer_.reducer()->weight_unit());
}

void Gradients::begin_capture() {
  is_captured_ = true;
  begin_in_current_stream();
}

std::vector<at::Tensor> Gradients::captured() {
  std::vector<at::Tensor> result;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    take(i);  // those that wait for the end of backward
    at::Tensor left = std::exchange(tensor(i).mutable_grad(), {});
    result.push_back(slots_[i].is_taken ? slots_[i].view : left);
  }
  return result;
}

void Gradients::scale_replay() {
  if (needs_no_arena() || !trainer_.has_weight()) return;
  if (!scale_.defined()) {
    scale_ = at::empty({}, at::TensorOptions().dtype(at::kDouble).device(device_of(*module_.group)));
  }
  scale_.fill_(factor());
}

void Gradients::check(std::size_t index) const {
  const std::string& name = module_.parameters()[index].name;
  const at::Tensor& result = slots_[index].result;
  if (slots_[index].is_taken) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: '{}' got a second gradient in one backward, in step {}, since a "
                    "checkpointed part, or a backward within the backward, shares it; set DdpOptions::overlap to false",
                    name, trainer_.step()));
  }
  const at::Tensor& gradient = tensor(index).grad();
  if (gradient.layout() != at::kStrided) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the gradient of '{}' is sparse, which can't be averaged; make it dense "
                    "(EmbeddingOptions::sparse)",
                    name));
  }
  if (gradient.scalar_type() != result.scalar_type() || gradient.sizes() != result.sizes()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the gradient of '{}' has {} elements of {}, but when the module was "
                    "wrapped it had {} of {}; wrap the module again after changing it",
                    name, gradient.numel(), c10::toString(gradient.scalar_type()), result.numel(),
                    c10::toString(result.scalar_type())));
  }
  if (gradient.requires_grad()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the gradient of '{}' has its own graph (create_graph), which an "
                    "all-reduce does not keep; take such gradients with torch::autograd::grad",
                    name));
  }
}

}  // namespace lockstep::libtorch
