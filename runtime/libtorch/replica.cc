// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/replica.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/intra_op_threads.h"
#include "lockstep/ddp/replica_check.h"
#include "lockstep/libtorch/sync_batch_norm.h"
#include "lockstep/trace/span.h"
#include "runtime/base/signal_stack.h"
#include "runtime/libtorch/replica_engine.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

// A SyncBatchNorm must know the weight of this rank's loss, and its buffers are equal on all ranks without a broadcast,
// unless its group has other ranks. Its backward is a collective between those of the buckets, and if ranks leave out
// different parameters, a bucket is full before it on one rank and after it on another: so buckets wait until the end
// of backward. The parameters that a rank leaves out may change in each step, so no earlier moment is known to be safe.
void join_norms(ReplicaEngine& engine, const GradientOptions& gradient_options) {
  // If the outputs' gradient is weighted, so are all gradients behind it.
  const LossWeight weight = engine.options.weight_outputs ? nullptr : gradient_options.loss_weight;
  for (const auto& [name, norm] : engine.sync_batch_norms()) {
    norm->join(engine.group, weight, gradient_options.before_backward);
    if (norm->group() != engine.group) continue;
    engine.hold_buckets();
    std::erase_if(engine.buffers(), [norm = norm](const NamedTensor& buffer) {
      return buffer.tensor.is_same(norm->running_mean) || buffer.tensor.is_same(norm->running_var) ||
             buffer.tensor.is_same(norm->num_batches_tracked);
    });
  }
}

// The first parameter with a gradient that is not 0. On a device the host waits for the answer, unless the gradients
// were set to none.
std::optional<std::string> live_gradient(const ReplicaEngine& replica) {
  std::vector<at::Tensor> is_live;
  std::vector<std::size_t> of_parameter;
  for (std::size_t i = 0; i < replica.parameters().size(); ++i) {
    const at::Tensor& gradient = replica.shards.gradient_that_tells(i);
    if (!gradient.defined()) continue;
    is_live.push_back(gradient.detach().ne(0).any());
    of_parameter.push_back(i);
  }
  if (is_live.empty() || !at::stack(is_live).any().item<bool>()) return std::nullopt;
  std::size_t first = 0;
  while (!is_live[first].item<bool>()) ++first;
  return replica.parameters()[of_parameter[first]].name;
}

void broadcast_buffers(ReplicaEngine& engine) {
  const DdpOptions& options = engine.options;
  if (!options.broadcast_buffers || !engine.is_training() || engine.trainer.is_in_no_sync() ||
      options.reproducible.is_on()) {
    return;
  }
  const trace::Span span(trace::SpanKind::collective);
  broadcast_state_in_stream(*engine.group, engine.buffers());
  if (engine.after_broadcast) engine.after_broadcast();
}

// Between micro-batches, or where `others_wait` in a collective of the forward's, a forward that throws ends the step.
void fail_forward(ReplicaEngine& engine, bool others_wait) noexcept {
  if (!at::GradMode::is_enabled()) return;
  engine.trainer.keep_failure("forward");
  if (others_wait || engine.trainer.accumulating()) engine.gradients.give_up();
}

template <typename Call>
void in_forward(ReplicaEngine& engine, Call call) {
  try {
    call();
  } catch (...) {
    fail_forward(engine, /*others_wait=*/false);
    throw;
  }
}

void run_without_data(ReplicaEngine& engine) {
  engine.enter();
  if (const auto norm = engine.collective_norm()) {  // of a forward, which this rank is about to leave out
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: step_without_data was called, but the SyncBatchNorm '{}' takes the statistics of all "
        "ranks' rows, so the other ranks would wait for this rank's; give the module a forward of 0 rows",
        *norm));
  }
  broadcast_buffers(engine);
  engine.trainer.spend_weight();
  in_forward(engine, [&] { engine.trainer.begin_forward(0); });
  engine.expect_no_outputs();
  engine.run([] {});
}

}  // namespace

// Hooks come last: an exception before them leaves the module without any.
Replica::Replica(const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> group, const DdpOptions& options)
    : engine_(std::make_shared<ReplicaEngine>(module, std::move(group), options)) {
  ReplicaEngine& engine = *engine_;
  const std::vector<NamedTensor>& state = engine.state();
  // By default torch uses all cores for each rank.
  if (at::get_num_threads() > intra_op_threads()) at::set_num_threads(intra_op_threads());
  compare_state(*engine.group, state, options.unused);
  if (!engine.gradients.may_need_no_arena()) engine.trainer.make_reducer();
  engine.repeatable.prepare();
  broadcast_state(*engine.group, state);
  std::int64_t bytes = 0;
  for (const auto& parameter : engine.parameters()) bytes += static_cast<std::int64_t>(parameter.tensor.nbytes());
  engine.trainer.adopt({.values = {[&engine] { return engine.versions(); }, [&engine] { return engine.dense_state(); }},
                        .live_gradient = [&engine] { return live_gradient(engine); },
                        .weight_bytes = bytes});
  if (options.shard != Shard::none && engine.group->size() > 1) engine.shards.cut();
  join_norms(engine, gradient_options());
  // Sums of fixed micro-batches are looked at all the same.
  const bool looks = options.not_finite != NotFinite::ignore && !options.reproducible.is_on();
  const auto expect_finite = [&engine](std::size_t i, const at::Tensor& g) { engine.expect_finite(i, g); };
  engine.hook(engine_, {.before = [&engine](std::size_t i, bool has) { engine.before_gradient(i, has); },
                        .after = [&engine](std::size_t i) { engine.on_gradient(i); },
                        .place = [&engine](std::size_t i) { return engine.gradient_place(i); },
                        .finite = looks ? TrainedModule::Calls::Finite(expect_finite) : nullptr});
}

Replica::~Replica() { engine_->leave(); }

GradientOptions Replica::gradient_options() const {
  return {.loss_weight = engine_->options.loss == Loss::sum ? nullptr : engine_->trainer.weight(),
          .before_backward = [weak = std::weak_ptr(engine_)] {
            if (const auto live = weak.lock()) live->gradients.plan_early();
          }};
}

std::int64_t Replica::rows_of(const at::Tensor& tensor) const {
  const std::int64_t dim = engine_->options.batch_dim;
  if (tensor.dim() == 0) return 1;
  if (dim < -tensor.dim() || dim >= tensor.dim()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: DdpOptions::batch_dim is {}, but forward's first tensor has {} "
                    "dimensions; set batch_dim to the dimension that counts rows",
                    dim, tensor.dim()));
  }
  return tensor.size(dim);
}

void Replica::set_weight_to(std::int64_t weight) {
  if (engine_->gradients.is_captured()) {
    throw InvalidArgument(
        "DistributedDataParallel: set_weight was called within the loss of a CapturedStep, which replays would leave "
        "out; call the CapturedStep's set_weight before each step");
  }
  in_forward(*engine_, [&] { engine_->enter(); });
  engine_->trainer.set_weight(weight);
  // The program itself says how many terms the loss is the mean of: the loss need not come from the outputs.
  engine_->expect_no_outputs();
}

void Replica::before_forward(std::optional<std::int64_t> rows) {
  // In a scope of autocast casts may be older than the parameters' values, or, from an evaluation, lack a graph.
  at::autocast::clear_cache();
  if (!at::GradMode::is_enabled()) return;
  ++engine_->forwards;
  engine_->rows = rows;
  if (engine_->gradients.is_captured()) return;
  give_signal_stack();  // oneDNN's kernels run on this thread
  in_forward(*engine_, [&] {
    engine_->enter();
    engine_->before_forward();
    engine_->trainer.begin_forward(rows);
    broadcast_buffers(*engine_);
    engine_->repeatable.before_forward();
  });
}

void Replica::forward_failed() { fail_forward(*engine_, engine_->collective_norm().has_value()); }

void Replica::after_forward(std::span<at::Tensor* const> outputs) { engine_->after_forward(outputs); }

void Replica::step_without_data() {
  if (!engine_->repeatable.has_micro_batches()) return run_without_data(*engine_);
  engine_->trainer.spend_weight();
  run_step(0, nullptr);  // each micro-batch is without rows
}

void Replica::run_step(std::int64_t rows, const std::function<at::Tensor(std::int64_t, std::int64_t)>& loss_of) {
  ReplicaEngine& engine = *engine_;
  Trainer& trainer = engine.trainer;
  trainer.end_micro_batch();  // of an earlier step that failed
  engine.settle_lost();
  std::vector<MicroBatch> micro_batches;
  try {
    micro_batches = trainer.begin_micro_batches(engine.audit.begin_step(rows));
  } catch (...) {
    engine.fail();
    throw;
  }
  const RepeatableStep::KeptGenerators kept(engine.repeatable);
  std::optional<MicroBatchBuffers::Step> step_of_buffers;
  if (engine.repeatable.has_micro_batches()) step_of_buffers.emplace(engine.micro_batch_buffers);
  const auto compute = [&](const MicroBatch& micro_batch) {
    if (step_of_buffers) {
      trainer.begin_micro_batch(micro_batch);
      engine.repeatable.begin_micro_batch();
      engine.micro_batch_buffers.begin_micro_batch();
      if (micro_batch.begin == micro_batch.end) return run_without_data(engine);
    }
    const ReplicaAudit::Recording recording(engine.audit, micro_batch);
    at::Tensor loss;
    if (step_of_buffers) step_of_buffers->observe();
    try {
      loss = loss_of(micro_batch.begin, micro_batch.end);
    } catch (...) {
      engine.fail_loss();
      throw;
    }
    if (step_of_buffers) step_of_buffers->rest();
    engine.audit.saw_loss(loss);
    backward(loss);
    if (engine.audit.drops_gradients()) return;
    if (trainer.micro_batch() && engine.repeatable.has_micro_batches()) {
      // The loss reached no parameter of this module: its gradients are zeros.
      engine.expect_no_outputs();
      engine.run([] {});
    }
    trainer.end_micro_batch();  // no close() has ended one without fixed micro-batches that reached no parameter
  };
  engine.audit.rehearse(compute);
  do {
    for (const MicroBatch& micro_batch : micro_batches) compute(micro_batch);
  } while (engine.audit.finish_step(compute, micro_batches));
}

void Replica::record_loss(double loss) { record_loss(at::scalar_tensor(loss, at::kDouble)); }

at::Tensor Replica::record_loss(at::Tensor loss) {
  if (!engine_->trainer.has_weight()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: record_loss was called in step {}, but no forward went through this "
                    "object since the last backward, or that forward has no weight; call record_loss after ddp(x) and "
                    "set_weight(), before backward()",
                    engine_->trainer.step()));
  }
  const auto dtype = loss.defined() ? dtype_of(loss.scalar_type()) : std::nullopt;
  if (!loss.defined() || loss.numel() != 1 || !dtype || !at::isFloatingType(loss.scalar_type())) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: record_loss got {}; give one floating-point number",
                    loss.defined() ? fmt::format("{} elements of {}", loss.numel(), c10::toString(loss.scalar_type()))
                                   : "an undefined tensor"));
  }
  const DeviceId device = engine_->group->device();
  if (device.kind == DeviceKind::cpu || !is_at_home(*engine_->group, loss.device())) {
    engine_->trainer.record_loss(loss.item<double>());
    return loss;
  }
  const auto kept = std::make_shared<at::Tensor>(loss.detach());
  engine_->trainer.record_loss({kept->data_ptr(), 1, *dtype, device}, current_stream(device), kept);
  return loss;
}

std::vector<at::Tensor> Replica::parameters() const {
  std::vector<at::Tensor> result;
  for (const auto& parameter : engine_->parameters()) result.push_back(parameter.tensor);
  return result;
}

void Replica::check_replicas() const {
  try {
    engine_->enter();
  } catch (...) {
    engine_->trainer.keep_failure("replica check");
    engine_->trainer.tell_failure();  // the others wait in it
    throw;
  }
  const OnCurrentStream ordered(*engine_->group);
  const DivergenceCheck::Replica::State state = engine_->dense_state();
  lockstep::check_replicas(*engine_->group, state.buffers);
}

void Replica::set_steps(std::int64_t steps) {
  engine_->trainer.set_steps(steps);
  engine_->repeatable.restart();
}

const std::shared_ptr<ProcessGroup>& Replica::group() const { return engine_->group; }
NoSync Replica::no_sync(bool is_on) { return engine_->trainer.no_sync(is_on); }
std::int64_t Replica::steps() const { return engine_->trainer.steps(); }
std::int64_t Replica::last_weight() const { return engine_->trainer.last_weight(); }
const GlobalBatch& Replica::last_batch() const { return engine_->trainer.last_batch(); }
const trace::StepRecord& Replica::last_step() const { return engine_->trainer.last_step(); }
bool Replica::is_step_over() const { return engine_->trainer.is_step_over(); }
void Replica::watch_data(DataIdentity identity) {
  engine_->audit.watch(identity);
  engine_->trainer.watch(std::move(identity));
}
std::optional<std::int64_t> Replica::audited_step() const { return engine_->audit.audited_step(); }
void Replica::set_audited_step(std::int64_t step) { engine_->audit.set_audited_step(step); }
bool Replica::digests_inputs() const { return engine_->audit.is_recording(); }
void Replica::digest_input(const at::Tensor& input) {
  if (input.defined()) engine_->audit.saw_input(input);
}
void Replica::before_blame(std::function<void(std::int64_t)> action) { engine_->audit.before_blame(std::move(action)); }
bool Replica::is_auditing() const { return engine_->audit.is_rehearsing(); }
void Replica::before_update(std::function<void()> action) { engine_->trainer.before_update(std::move(action)); }
void Replica::before_accumulate(std::function<void()> action) { engine_->trainer.before_accumulate(std::move(action)); }
void Replica::after_broadcast(std::function<void()> action) { engine_->after_broadcast = std::move(action); }
at::Generator Replica::generator(std::uint32_t key) const { return engine_->repeatable.generator(key); }
std::optional<std::int64_t> Replica::weight_unit() const { return engine_->gradients.weight_unit(); }
void Replica::set_weight_unit(std::int64_t unit) { engine_->gradients.set_weight_unit(unit); }

}  // namespace lockstep::libtorch
