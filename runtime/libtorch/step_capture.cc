// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/fused_optimizers.h"
#include "lockstep/libtorch/step_capture.h"
#include "runtime/base/logging.h"
#include "runtime/libtorch/collective_tensors.h"
#include "runtime/libtorch/fused_state.h"

namespace lockstep::libtorch {
namespace {

// While one lives, `stream` is this thread's current one, in order with the caller's; after an exception too, for the
// caller may free what the stream reads.
class InStream {
 public:
  InStream(DeviceId device, const c10::Stream& stream) : callers_(current_stream(device)), guard_(stream) {
    put_in_order(callers_, current_stream(device));
  }
  ~InStream() {
    try {
      put_in_order(current_stream(callers_.device), callers_);
    } catch (const std::exception& error) {
      log_error("CapturedStep: back to the caller's stream: {}", error.what());
    }
  }
  InStream(const InStream&) = delete;
  InStream& operator=(const InStream&) = delete;

 private:
  StreamView callers_;
  c10::StreamGuard guard_;
};

// All that a captured step of an optimizer keeps using: its settings, and where its tensors lie; and the parameters'
// versions, for a master follows no write that others make. Empty if nothing is known of it.
using Frozen = std::vector<std::uint64_t>;

template <typename State, typename Options>
Frozen frozen_in(::torch::optim::Optimizer& optimizer) {
  Frozen frozen;
  const auto add = [&]<typename T>(const char*, const T& value) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      const bool has_memory = value.defined() && value.layout() == at::kStrided;
      frozen.push_back(has_memory ? reinterpret_cast<std::uintptr_t>(value.data_ptr()) : 0);
    } else if constexpr (std::is_same_v<T, std::tuple<double, double>>) {
      frozen.push_back(std::bit_cast<std::uint64_t>(std::get<0>(value)));
      frozen.push_back(std::bit_cast<std::uint64_t>(std::get<1>(value)));
    } else if constexpr (!std::is_same_v<T, std::int64_t>) {  // a count of steps, which the device has for itself
      frozen.push_back(std::bit_cast<std::uint64_t>(static_cast<double>(value)));
    }
  };
  for (auto& group : optimizer.param_groups()) {
    each_setting(static_cast<Options&>(group.options()), add);
    for (const at::Tensor& parameter : group.params()) {
      add("parameter", parameter);
      add("gradient", parameter.grad());
      frozen.push_back(static_cast<std::uint64_t>(parameter._version()));
    }
  }
  for (auto& [key, any] : optimizer.state()) {
    if (auto* const state = dynamic_cast<State*>(any.get())) each_field(*state, add);
    if (auto* const fused = dynamic_cast<FusedState<State>*>(any.get())) add("taken", fused->taken);
  }
  return frozen;
}

// torch's Adam and its like count steps on the host.
Frozen frozen_of(::torch::optim::Optimizer& any) {
  using namespace ::torch::optim;
  if (dynamic_cast<SGD*>(&any) != nullptr) return frozen_in<SGDParamState, SGDOptions>(any);
  const auto* const fused = dynamic_cast<const FusedOptimizer*>(&any);
  if (fused == nullptr || !fused->is_fused()) return {};
  if (dynamic_cast<AdamW*>(&any) != nullptr) return frozen_in<AdamWParamState, AdamWOptions>(any);
  return frozen_in<AdamParamState, AdamOptions>(any);
}

std::vector<std::uint64_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint64_t> result;
  for (const at::Tensor& tensor : tensors) result.push_back(static_cast<std::uint64_t>(tensor._version()));
  return result;
}

}  // namespace

StepCapture::StepCapture(std::shared_ptr<Replica> replica, const ::torch::nn::Module& module,
                         ::torch::optim::Optimizer& optimizer, std::string why_not, MakeGraph make_graph,
                         CapturedStepOptions options)
    : replica_(std::move(replica)),
      module_(module),
      optimizer_(optimizer),
      why_not_(std::move(why_not)),
      make_graph_(std::move(make_graph)),
      options_{std::max(options.warm_up, 1)} {
  const at::Device device = device_of(*replica_->group());
  if (device.is_cpu() || !why_not_.empty()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  const c10::StreamGuard guard(*stream_);
  replica_->accumulate_here();
}

std::string StepCapture::why_eager(const std::vector<at::Tensor>& inputs, const std::string& kind) const {
  if (!why_not_.empty()) return why_not_;
  const ProcessGroup& group = *replica_->group();
  if (!std::ranges::all_of(inputs, [&](const at::Tensor& input) {
        return !input.requires_grad() && is_at_home(group, input.device());
      })) {
    return fmt::format("an input requires a gradient or is not on {}: {}", group.device().str(), kind);
  }
  if (const auto norm = Replica::collective_norm(module_)) {
    return fmt::format("the SyncBatchNorm '{}' takes the statistics of all ranks' rows", *norm);
  }
  if (graph_ == nullptr || kind == captured_kind_) return {};
  return fmt::format("the inputs are {}, and captured is {}", kind, captured_kind_);
}

at::Tensor StepCapture::run(const std::vector<at::Tensor>& inputs, const LossOf& loss_of) {
  std::optional<InStream> in_stream;
  if (stream_) in_stream.emplace(replica_->group()->device(), *stream_);
  replica_->begin_step();
  std::string name = module_.is_training() ? "training" : "evaluation";
  for (const at::Tensor& input : inputs) name += ", " + describe(input);
  const std::string why = why_eager(inputs, name);
  if (!why.empty() && told_.insert(why).second) log_warn("CapturedStep: runs eagerly: {}", why);
  Kind& kind = kinds_[name];
  was_replayed_ = why.empty() && kind.eager_steps >= options_.warm_up;
  if (was_replayed_) captured_kind_ = name;
  const at::Tensor loss = was_replayed_ ? replay(inputs, loss_of, kind) : step_eagerly(inputs, loss_of, kind);
  weight_.reset();
  update();
  return loss;
}

at::Tensor StepCapture::step_eagerly(const std::vector<at::Tensor>& inputs, const LossOf& loss_of, Kind& kind) {
  const std::int64_t before = replica_->forwards().count;
  const at::Tensor loss = loss_of(inputs);
  kind.rows = replica_->forwards().rows;
  if (const std::int64_t made = replica_->forwards().count - before; made != 1) {
    throw InvalidArgument(fmt::format(
        "CapturedStep: the loss made {} forwards through ddp, and a step has 1; call ddp(x) once in it, and "
        "evaluate under a NoGradGuard",
        made));
  }
  if (weight_) replica_->set_weight(module_, *weight_);
  replica_->record_loss(loss);
  loss.backward();
  ++kind.eager_steps;
  return loss.detach();
}

at::Tensor StepCapture::replay(const std::vector<at::Tensor>& inputs, const LossOf& loss_of, const Kind& kind) {
  replica_->before_replay(module_, kind.rows, weight_);
  at::Tensor loss;
  try {
    if (graph_ == nullptr) {
      inputs_.clear();
      for (const at::Tensor& input : inputs) inputs_.push_back(at::empty_like(input));
      std::unique_ptr<StepGraph> graph = make_graph_();
      graph->capture([this, loss_of] {
        const at::AutoGradMode grad(true);
        loss_ = replica_->compute_captured([&] { return loss_of(inputs_); });
      });
      graph_ = std::move(graph);
    }
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs_[i].copy_(inputs[i], /*non_blocking=*/true);
    graph_->replay();
    loss = loss_.clone();  // the next replay writes the graph's
    replica_->record_loss(loss);
  } catch (...) {
    replica_->shard_failed();  // the other ranks wait in the buckets
    throw;
  }
  replica_->after_replay();
  return loss;
}

// A replay writes parameters without torch's knowledge, and ranks compare how often each was written (_version()): it
// is counted as an eager step is.
void StepCapture::update() {
  const std::vector<at::Tensor> parameters = replica_->parameters();
  const std::vector<std::uint64_t> before = versions_of(parameters);
  const Frozen frozen = graph_ == nullptr ? Frozen{} : frozen_of(optimizer_);
  if (!frozen.empty() && frozen == last_frozen_) {
    if (update_graph_ == nullptr) {
      std::unique_ptr<StepGraph> graph = make_graph_();
      graph->capture([this] { optimizer_.step(); });
      update_graph_ = std::move(graph);
    }
    update_graph_->replay();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::uint64_t wanted = before[i] + writes_[i];
      while (static_cast<std::uint64_t>(parameters[i]._version()) < wanted)
        ::torch::autograd::impl::bump_version(parameters[i]);
    }
    for (auto& [key, any] : optimizer_.state()) {  // the host has not counted the step; see FusedState
      auto* const adamw = dynamic_cast<FusedState<::torch::optim::AdamWParamState>*>(any.get());
      auto* const adam = dynamic_cast<FusedState<::torch::optim::AdamParamState>*>(any.get());
      if (adamw != nullptr) adamw->is_uncertain = true;
      if (adam != nullptr) adam->is_uncertain = true;
    }
  } else {
    update_graph_.reset();
    optimizer_.step();
    writes_ = versions_of(parameters);
    for (std::size_t i = 0; i < writes_.size(); ++i) writes_[i] -= before[i];
  }
  last_frozen_ = graph_ == nullptr ? Frozen{} : frozen_of(optimizer_);
}

}  // namespace lockstep::libtorch
