// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/trained_module.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/sync_batch_norm.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {

using ::torch::autograd::variable_list;

struct TrainedModule::PreHook : ::torch::autograd::FunctionPreHook {
  PreHook(std::weak_ptr<const Calls> the_calls, std::size_t the_index)
      : calls(std::move(the_calls)), index(the_index) {}
  variable_list operator()(const variable_list& gradients) override {
    const bool has_gradient = !gradients.empty() && gradients.front().defined();
    if (const auto live = calls.lock()) live->before(index, has_gradient);
    return gradients;
  }

  std::weak_ptr<const Calls> calls;
  std::size_t index;
};

// A type of its own, by which another replica knows it.
struct TrainedModule::Hook : ::torch::autograd::utils::LambdaPostHook {
  using Tensors = std::vector<at::Tensor>;
  Hook(std::weak_ptr<const Calls> the_calls, std::size_t index)
      : LambdaPostHook([the_calls, index](const Tensors& outputs, const Tensors&) {
          if (const auto live = the_calls.lock()) live->after(index);
          return outputs;
        }),
        calls(std::move(the_calls)) {}

  std::weak_ptr<const Calls> calls;
};

namespace {

bool has_own_hooks(const ::torch::autograd::Node& accumulator) {
  const auto& variable = static_cast<const ::torch::autograd::AccumulateGrad&>(accumulator).variable;
  return !::torch::autograd::impl::hooks(variable).empty();
}

std::shared_ptr<ProcessGroup> required(std::shared_ptr<ProcessGroup> group) {
  if (group) return group;
  throw InvalidArgument("DistributedDataParallel: the process group is null; pass what init_process_group returned");
}

}  // namespace

TrainedModule::TrainedModule(const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> given_group,
                             const DdpOptions& given)
    : group(required(std::move(given_group))),
      options(given),
      module_(module),
      state_(state_of(module)),
      parts_(parts_of(module)),
      micro_batch_buffers(module, options),
      trainer(group, sort_parameters(),
              Trainer::Options::of(options, /*track_unused=*/true, group.get(),
                                   static_cast<int>(micro_batch_buffers.specs().size()))) {}

// Sorts the tensors, and returns what the Trainer is to know of the parameters.
std::vector<ParameterSpec> TrainedModule::sort_parameters() {
  std::vector<ParameterSpec> specs;
  require_on_group_device("DistributedDataParallel", *group, state_);
  require_elements_apart("DistributedDataParallel", state_);
  for (const NamedTensor& item : state_) {
    if (!item.is_parameter) {
      buffers_.push_back(item);
    } else if (!item.tensor.requires_grad()) {
      frozen_.push_back(item);
    } else if (!dtype_of(item.tensor.scalar_type())) {
      throw InvalidArgument(fmt::format(
          "DistributedDataParallel: parameter '{}' is {}, but gradients are averaged in float32, float64, bfloat16 or "
          "float16; train the view of a complex parameter as real numbers (at::view_as_real), or freeze it",
          item.name, c10::toString(item.tensor.scalar_type())));
    } else {
      parameters_.push_back({item.name, item.tensor});
      specs.push_back({item.name, reduced_as(item.tensor), item.tensor.sizes().vec()});
    }
  }
  if (parameters_.empty()) {
    throw InvalidArgument(
        "DistributedDataParallel: the module has no parameter that requires a gradient; register such a parameter "
        "first, or train without DistributedDataParallel");
  }
  refuse_wrapped_twice();
  std::ranges::move(micro_batch_buffers.specs(), std::back_inserter(specs));
  return specs;
}

DType TrainedModule::reduced_as(const at::Tensor& parameter) const {
  const DType own = *dtype_of(parameter.scalar_type());
  return size_of(own) == 2 && group->device().kind == DeviceKind::cpu ? DType::f32 : own;
}

std::vector<std::pair<std::string, const SyncBatchNormImpl*>> TrainedModule::sync_batch_norms() const {
  std::vector<std::pair<std::string, const SyncBatchNormImpl*>> norms;
  const auto look_at = [&](const std::string& name, const ::torch::nn::Module& part) {
    if (const auto* norm = dynamic_cast<const SyncBatchNormImpl*>(&part)) norms.emplace_back(name, norm);
  };
  look_at("", module_);  // not by named_modules(): it may be on the stack
  for (const auto& part : module_.named_modules("", /*include_self=*/false)) look_at(part.key(), *part.value());
  return norms;
}

std::optional<std::string> TrainedModule::collective_norm() const {
  for (const auto& [name, norm] : sync_batch_norms()) {
    if (norm->is_collective()) return name.empty() ? module_.name() : name;
  }
  return std::nullopt;
}

void TrainedModule::hook(const std::shared_ptr<void>& owner, Calls calls) {
  calls_ = std::move(calls);
  live_calls_ = std::shared_ptr<const Calls>(owner, &calls_);
  hooked_.resize(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) hook(i);
}

void TrainedModule::hook(std::size_t index) {
  auto& [accumulator, hook, pre_hook] = hooked_[index];
  accumulator = ::torch::autograd::impl::grad_accumulator(parameters_[index].tensor);
  numbers_.emplace(accumulator.get(), static_cast<int>(index));
  auto owned = std::make_unique<PreHook>(live_calls_, index);
  pre_hook = owned.get();
  accumulator->add_pre_hook(std::move(owned));
  hook = accumulator->add_post_hook(std::make_unique<Hook>(live_calls_, index));
}

const TrainedModule::PreHook* TrainedModule::hook_of(::torch::autograd::Node* accumulator) {
  if (accumulator == nullptr || accumulator->pre_hooks().size() != 1) return nullptr;
  return dynamic_cast<const PreHook*>(accumulator->pre_hooks().front().get());
}

bool TrainedModule::is_trained(const at::Tensor& parameter) {
  const NodePtr accumulator = ::torch::autograd::impl::try_get_grad_accumulator(parameter);
  const PreHook* const hook = hook_of(accumulator.get());
  return hook != nullptr && !hook->calls.expired();
}

const TrainedModule::PreHook* TrainedModule::direct_hook_of(::torch::autograd::Node* accumulator) {
  const PreHook* const hook = hook_of(accumulator);
  // A backward that names its inputs may take the gradient as a result, and not accumulate it.
  const auto* const named = ::torch::autograd::get_current_graph_task_exec_info();
  const bool is_direct = hook != nullptr && !has_own_hooks(*accumulator) && !at::GradMode::is_enabled() &&
                         named != nullptr && named->empty();
  return is_direct ? hook : nullptr;
}

at::Tensor TrainedModule::gradient_place(::torch::autograd::Node* accumulator) {
  const PreHook* const hook = direct_hook_of(accumulator);
  const auto live = hook != nullptr ? hook->calls.lock() : nullptr;
  return live ? live->place(hook->index) : at::Tensor();
}

void TrainedModule::tell_finite(::torch::autograd::Node* accumulator, const at::Tensor& gradient,
                                const std::function<bool()>& is_finite) {
  const PreHook* const hook = direct_hook_of(accumulator);
  const auto live = hook != nullptr ? hook->calls.lock() : nullptr;
  if (live && live->finite && is_finite()) live->finite(hook->index, gradient);
}

void TrainedModule::unhook() noexcept {
  for (const Hooked& hooked : hooked_) unhook(hooked);
}

void TrainedModule::unhook(const Hooked& hooked) noexcept {
  hooked.accumulator->del_post_hook(hooked.hook);
  std::erase_if(hooked.accumulator->pre_hooks(), [&](const auto& hook) { return hook.get() == hooked.pre_hook; });
}

// Torch accumulates a gradient in the stream that was current when the accumulator was made. The default stream, in
// which programs wrap their modules, can't be captured.
void TrainedModule::accumulate_here() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    NodePtr& accumulator = hooked_[i].accumulator;
    unhook(hooked_[i]);
    numbers_.erase(accumulator.get());
    accumulator.reset();
    const auto is_held = static_cast<bool>(::torch::autograd::impl::try_get_grad_accumulator(parameters_[i].tensor));
    hook(i);
    if (!is_held) continue;
    throw InvalidArgument(fmt::format(
        "CapturedStep: a graph holds the gradient accumulator of '{}', in a stream that can't be captured; make the "
        "CapturedStep before the first forward, or destroy the losses and outputs of earlier forwards",
        parameters_[i].name));
  }
}

// Each of the two would take the other's mean for this rank's gradient.
void TrainedModule::refuse_wrapped_twice() const {
  for (const Parameter& parameter : parameters_) {
    const NodePtr accumulator = ::torch::autograd::impl::try_get_grad_accumulator(parameter.tensor);
    if (!accumulator) continue;
    for (const auto& hook : accumulator->post_hooks()) {
      const auto* other = dynamic_cast<const Hook*>(hook.get());
      if (other == nullptr || other->calls.expired()) continue;
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: '{}' is trained by another DistributedDataParallel already; destroy "
                      "that DistributedDataParallel first",
                      parameter.name));
    }
  }
}

void TrainedModule::refuse_thawed_or_converted() const {
  for (const auto& [name, tensor, is_parameter] : frozen_) {
    if (tensor.requires_grad()) {
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: '{}' was frozen when the module was wrapped and requires a gradient "
                      "now, which nobody would average; wrap the module again",
                      name));
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    // torch makes another accumulator for a parameter whose dtype or device changes; that one has no hook.
    if (::torch::autograd::impl::try_get_grad_accumulator(parameters_[i].tensor) != hooked_[i].accumulator) {
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: '{}' has been converted or moved since the module was wrapped, and "
                      "nobody would average its gradient; wrap the module again",
                      parameters_[i].name));
    }
  }
}

void TrainedModule::refuse_changed() {
  refuse_thawed_or_converted();
  std::vector<const void*> parts = parts_of(module_);
  if (parts == parts_) return;
  for (const auto& [name, norm] : sync_batch_norms()) {
    if (norm->is_joined()) continue;
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the SyncBatchNorm '{}' was added to the module after it was wrapped, and "
                    "knows neither its group nor the weight of this rank's loss; call convert_sync_batch_norm first, "
                    "then wrap the module",
                    name));
  }
  std::unordered_set<const void*> known;
  for (const NamedTensor& item : state_) known.insert(item.tensor.unsafeGetTensorImpl());
  const bool are_buffers_equal = options.broadcast_buffers || options.reproducible.is_on();
  for (const NamedTensor& item : state_of(module_)) {
    // If each rank has its own buffers, new buffers need no broadcast either.
    if (known.contains(item.tensor.unsafeGetTensorImpl()) || !(item.is_parameter || are_buffers_equal)) continue;
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: {} '{}' was added to the module after it was wrapped, and nobody would {}; wrap the "
        "module again{}",
        item.is_parameter ? "parameter" : "buffer", item.name,
        item.is_parameter ? "average its gradient" : "broadcast it",
        item.is_parameter ? "" : ", or set DdpOptions::broadcast_buffers to false where it is each rank's own"));
  }
  parts_ = std::move(parts);
}

std::uint64_t TrainedModule::versions() const {
  std::uint64_t sum = trained_versions();
  for (const NamedTensor& item : frozen_) sum += writes_to(item.tensor);
  return sum;
}

std::uint64_t TrainedModule::trained_versions() const {
  std::uint64_t sum = 0;
  for (const Parameter& parameter : parameters_) sum += writes_to(parameter.tensor);
  return sum;
}

DivergenceCheck::Replica::State TrainedModule::dense_state() const {
  const auto dense = std::make_shared<std::vector<at::Tensor>>();
  DivergenceCheck::Replica::State state{.buffers = {}, .owner = dense};
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    dense->push_back(tensor.detach().contiguous());
    state.buffers.push_back({name, bytes_of(dense->back())});
  };
  for (const Parameter& parameter : parameters_) add(parameter.name, parameter.tensor);
  for (const NamedTensor& item : frozen_) add(item.name, item.tensor);
  return state;
}

}  // namespace lockstep::libtorch
