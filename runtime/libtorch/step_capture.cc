// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/step_capture.h"
#include "runtime/base/logging.h"
#include "runtime/libtorch/collective_tensors.h"
#include "runtime/libtorch/replica_engine.h"

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
      log_error(
          "CapturedStep: the caller's stream may run ahead of the captured step, since putting the two in order "
          "failed: {}; synchronise the device before you use the step's results",
          error.what());
    }
  }
  InStream(const InStream&) = delete;
  InStream& operator=(const InStream&) = delete;

 private:
  StreamView callers_;
  c10::StreamGuard guard_;
};

}  // namespace

StepCapture::StepCapture(Replica& replica, ::torch::optim::Optimizer& optimizer, std::string why_not,
                         MakeGraph make_graph, CapturedStepOptions options)
    : replica_(replica),
      engine_(replica.engine()),
      optimizer_(optimizer),
      why_not_(std::move(why_not)),
      make_graph_(std::move(make_graph)),
      options_{std::max(options.warm_up, 1)} {
  const at::Device device = device_of(*engine_->group);
  if (device.is_cpu() || !why_not_.empty()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  const c10::StreamGuard guard(*stream_);
  engine_->accumulate_here();
}

std::string StepCapture::why_eager(const std::vector<at::Tensor>& inputs, const std::string& kind) const {
  if (!why_not_.empty()) return why_not_;
  const ProcessGroup& group = *engine_->group;
  if (!std::ranges::all_of(inputs, [&](const at::Tensor& input) {
        return !input.requires_grad() && is_at_home(group, input.device());
      })) {
    return fmt::format("an input requires a gradient or is not on {}: {}", group.device().str(), kind);
  }
  if (const auto norm = engine_->collective_norm()) {
    return fmt::format("the SyncBatchNorm '{}' takes the statistics of all ranks' rows", *norm);
  }
  if (graph_ == nullptr || kind == captured_kind_) return {};
  return fmt::format("the inputs are {}, but the step was captured with {}", kind, captured_kind_);
}

at::Tensor StepCapture::run(const std::vector<at::Tensor>& inputs, const LossOf& loss_of) {
  std::optional<InStream> in_stream;
  if (stream_) in_stream.emplace(engine_->group->device(), *stream_);
  clear_gradients();
  std::string name = engine_->is_training() ? "training" : "evaluation";
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

// The gradients of a captured step are there for one backward alone.
void StepCapture::clear_gradients() {
  const DdpOptions& options = engine_->options;
  const Trainer& trainer = engine_->trainer;
  if (options.weight_outputs || options.reproducible.is_on() || engine_->shards.are_cut() || trainer.is_in_no_sync() ||
      trainer.accumulating()) {
    throw InvalidArgument(
        fmt::format("CapturedStep: step {} is in no_sync(), or after its micro-batches, or DdpOptions has "
                    "weight_outputs, reproducible or shard, but a captured step is one backward, weighted on the "
                    "device; take larger batches instead of no_sync(), and leave these options out",
                    trainer.step()));
  }
  for (const auto& parameter : engine_->parameters()) parameter.tensor.mutable_grad() = at::Tensor();
  // A graph would read the casts of an outer autocast scope, made outside of its memory, after they are freed.
  at::autocast::clear_cache();
}

at::Tensor StepCapture::step_eagerly(const std::vector<at::Tensor>& inputs, const LossOf& loss_of, Kind& kind) {
  const std::int64_t before = engine_->forwards;
  const at::Tensor loss = loss_of(inputs);
  kind.rows = engine_->rows;
  if (const std::int64_t made = engine_->forwards - before; made != 1) {
    throw InvalidArgument(
        fmt::format("CapturedStep: the loss made {} forwards through ddp, but a step has 1; call ddp(x) once in the "
                    "loss, and evaluate under a NoGradGuard",
                    made));
  }
  if (weight_) replica_.set_weight(*weight_);
  replica_.record_loss(loss);
  loss.backward();
  ++kind.eager_steps;
  return loss.detach();
}

at::Tensor StepCapture::replay(const std::vector<at::Tensor>& inputs, const LossOf& loss_of, const Kind& kind) {
  // What a forward does ahead of the module's own, and set_weight().
  replica_.before_forward(kind.rows);
  if (weight_) engine_->trainer.set_weight(*weight_);
  engine_->expect_no_outputs();  // no backward will come through them
  engine_->gradients.scale_replay();
  at::Tensor loss;
  try {
    if (graph_ == nullptr) {
      inputs_.clear();
      for (const at::Tensor& input : inputs) inputs_.push_back(at::empty_like(input));
      std::unique_ptr<StepGraph> graph = make_graph_();
      graph->capture([this, loss_of] {
        const at::AutoGradMode grad(true);
        loss_ = compute(loss_of);
      });
      graph_ = std::move(graph);
    }
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs_[i].copy_(inputs[i], /*non_blocking=*/true);
    graph_->replay();
    loss = loss_.clone();  // the next replay writes the graph's
    replica_.record_loss(loss);
  } catch (...) {
    engine_->fail_loss();  // the other ranks wait in the buckets
    throw;
  }
  engine_->run([this] {
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      if (gradients_[i].defined()) engine_->gradients.bring(i, gradients_[i]);
    }
  });
  return loss;
}

// On a device torch's threads run the backward, and begin it after this one has begun the capture.
at::Tensor StepCapture::compute(const LossOf& loss_of) {
  engine_->refuse_unweighted();
  clear_gradients();
  const std::shared_ptr<void> leave(nullptr, [this](void*) { engine_->gradients.end_capture(); });
  engine_->gradients.begin_capture();
  const at::Tensor loss = loss_of(inputs_);
  loss.backward();
  gradients_ = engine_->gradients.captured();
  return loss.detach();
}

}  // namespace lockstep::libtorch
