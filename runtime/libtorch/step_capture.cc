// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/step_capture.h"
#include "runtime/base/logging.h"
#include "runtime/libtorch/collective_tensors.h"

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
  optimizer_.step();
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

}  // namespace lockstep::libtorch
