// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/replica_impl.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/intra_op_threads.h"
#include "lockstep/base/random.h"
#include "lockstep/data/sampler.h"
#include "lockstep/ddp/replica_check.h"
#include "lockstep/libtorch/sync_batch_norm.h"
#include "lockstep/trace/span.h"
#include "runtime/base/logging.h"
#include "runtime/base/signal_stack.h"
#include "runtime/libtorch/graph_order.h"
#include "runtime/libtorch/output_boundary.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {

using ::torch::autograd::variable_list;

// So many forwards may be in one loss, as of an episode.
constexpr int kManyForwards = 1000;

struct ReplicaImpl::PreHook : ::torch::autograd::FunctionPreHook {
  PreHook(std::weak_ptr<ReplicaImpl> the_replica, std::size_t the_index)
      : replica(std::move(the_replica)), index(the_index) {}
  variable_list operator()(const variable_list& gradients) override {
    const bool has_gradient = !gradients.empty() && gradients.front().defined();
    if (const auto self = replica.lock()) self->before_gradient(index, has_gradient);
    return gradients;
  }

  std::weak_ptr<ReplicaImpl> replica;
  std::size_t index;
};

// A type of its own, by which another replica knows it.
struct ReplicaImpl::Hook : ::torch::autograd::utils::LambdaPostHook {
  using Tensors = std::vector<at::Tensor>;
  Hook(std::weak_ptr<ReplicaImpl> the_replica, std::size_t index)
      : LambdaPostHook([the_replica, index](const Tensors& outputs, const Tensors&) {
          if (const auto self = the_replica.lock()) self->on_gradient(index);
          return outputs;
        }),
        replica(std::move(the_replica)) {}

  std::weak_ptr<ReplicaImpl> replica;
};

std::shared_ptr<Replica> Replica::create(const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                         const DdpOptions& options) {
  if (!group) {
    throw InvalidArgument("DistributedDataParallel: the process group is null; pass what init_process_group returned");
  }
  const auto replica = std::make_shared<ReplicaImpl>(std::move(group), options);
  replica->adopt(module);
  return replica;
}

ReplicaImpl::ReplicaImpl(std::shared_ptr<ProcessGroup> group, DdpOptions options)
    : group_(std::move(group)), options_(std::move(options)), overlap_(options_.overlap) {}

void ReplicaImpl::adopt(const ::torch::nn::Module& module) {
  const std::vector<NamedTensor> state = state_of(module);
  require_on_group_device("DistributedDataParallel", *group_, state);
  require_elements_apart("DistributedDataParallel", state);
  stream_ = current_stream(group_->device());
  if (group_->device().kind != DeviceKind::cpu) mark_.emplace(group_->device());
  if (group_->size() == 1 && !mark_ && options_.not_finite != NotFinite::ignore) {
    wrong_.emplace(options_.not_finite, group_);
  }
  // By default torch uses all cores for each rank.
  if (at::get_num_threads() > intra_op_threads()) at::set_num_threads(intra_op_threads());
  for (const NamedTensor& item : state) {
    if (!item.is_parameter) {
      buffers_.push_back(item);
    } else if (!item.tensor.requires_grad()) {
      frozen_.push_back(item);
    } else if (!dtype_of(item.tensor.scalar_type())) {
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: parameter '{}' is {}; gradients are averaged in "
                      "float32, float64, bfloat16 or float16; train the view of a complex parameter as real numbers "
                      "(at::view_as_real), or freeze it",
                      item.name, c10::toString(item.tensor.scalar_type())));
    } else {
      parameters_.push_back({.name = item.name, .tensor = item.tensor, .strides = gradient_strides(item.tensor)});
    }
  }
  if (parameters_.empty()) {
    throw InvalidArgument(
        "DistributedDataParallel: the module has no parameter that requires a gradient; register them before, or "
        "train without it");
  }
  refuse_wrapped_twice();
  trainer_ =
      std::make_unique<Trainer>(group_, specs(), Trainer::Options::of(options_, /*track_unused=*/true, group_.get()));
  compare_state(*group_, state, options_.unused);
  if (group_->size() > 1 || always_needs_arena()) trainer_->make_reducer();
  if (options_.reproducible.is_on()) make_reproducible(module);
  broadcast_state(*group_, state);
  std::int64_t bytes = 0;
  for (const Parameter& parameter : parameters_) bytes += static_cast<std::int64_t>(parameter.tensor.nbytes());
  trainer_->adopt({.values = {[this] { return versions(); }, [this] { return dense_state(); }},
                   .live_gradient = [this] { return live_gradient(); },
                   .weight_bytes = bytes});
  cut_shares();
  join_norms(module);
  wrapped_ = state;
  parts_ = parts_of(module);
  for (std::size_t i = 0; i < parameters_.size(); ++i) hook(i);
}

// A SyncBatchNorm must know the weight of this rank's loss, and its buffers are equal on all ranks without a broadcast,
// unless its group has other ranks. Its backward is a collective between those of the buckets, and if ranks leave out
// different parameters, a bucket is full before it on one rank and after it on another: so buckets wait until the end
// of backward. The parameters that a rank leaves out may change in each step, so no earlier moment is known to be safe.
void ReplicaImpl::join_norms(const ::torch::nn::Module& module) {
  const auto share = [&](const ::torch::nn::Module& candidate) {
    const auto* norm = dynamic_cast<const SyncBatchNormImpl*>(&candidate);
    if (norm == nullptr) return;
    // If the outputs' gradient is weighted, so are all gradients behind it. A sum has no weight.
    const bool arrives_weighted = options_.weigh_outputs || options_.loss == Loss::sum;
    norm->join(group_, arrives_weighted ? nullptr : trainer_->weight(), gradient_options().before_backward);
    if (norm->group() != group_) return;
    overlap_ = false;
    std::erase_if(buffers_, [&](const NamedTensor& buffer) {
      return buffer.tensor.is_same(norm->running_mean) || buffer.tensor.is_same(norm->running_var) ||
             buffer.tensor.is_same(norm->num_batches_tracked);
    });
  };
  share(module);
  for (const auto& child : module.modules(/*include_self=*/false)) share(*child);
}

void ReplicaImpl::hook(std::size_t index) {
  Parameter& parameter = parameters_[index];
  parameter.accumulator = ::torch::autograd::impl::grad_accumulator(parameter.tensor);
  accumulators_.emplace(parameter.accumulator.get(), static_cast<int>(index));
  auto pre_hook = std::make_unique<PreHook>(weak_from_this(), index);
  parameter.pre_hook = pre_hook.get();
  parameter.accumulator->add_pre_hook(std::move(pre_hook));
  parameter.hook = parameter.accumulator->add_post_hook(std::make_unique<Hook>(weak_from_this(), index));
}

void ReplicaImpl::unhook(Parameter& parameter) {
  parameter.accumulator->del_post_hook(parameter.hook);
  std::erase_if(parameter.accumulator->pre_hooks(), [&](const auto& hook) { return hook.get() == parameter.pre_hook; });
}

// Each of the two would take the other's mean for this rank's gradient.
void ReplicaImpl::refuse_wrapped_twice() const {
  for (const Parameter& parameter : parameters_) {
    const NodePtr accumulator = ::torch::autograd::impl::try_get_grad_accumulator(parameter.tensor);
    if (!accumulator) continue;
    for (const auto& hook : accumulator->post_hooks()) {
      const auto* other = dynamic_cast<const Hook*>(hook.get());
      if (other == nullptr || other->replica.expired()) continue;
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: '{}' is trained by another DistributedDataParallel already; let go of "
                      "that one first",
                      parameter.name));
    }
  }
}

void ReplicaImpl::detach() noexcept {
  settle_lost();  // torch's threads may hold a step that an exception has ended for longer than its caller holds this
  trainer_->tell_if_unwinding();
  has_shares_ = false;
  const int unreached = forwards_without_step_.value_or(0);
  try {
    if (unreached > 0 && unreached < kManyForwards && std::uncaught_exceptions() == 0) tell_of_no_backward();
    for (Parameter& parameter : parameters_) {
      if (parameter.accumulator) unhook(parameter);
      if (is_sharded() && parameter.tensor.grad().is_same(parameter.result)) parameter.tensor.mutable_grad().reset();
      if (!lies_in_arena(parameter)) continue;
      order(stream_, current_stream(group_->device()));  // the last step may have been in another
      parameter.tensor.mutable_grad() = is_half_done_ ? at::Tensor() : parameter.view.clone();
    }
  } catch (const std::exception& error) {
    // A gradient that could not be copied stays where it is: it holds the memory.
    log_error("DistributedDataParallel: leaving the module: {}", error.what());
  }
}

std::vector<ParameterSpec> ReplicaImpl::specs() const {
  std::vector<ParameterSpec> specs;
  for (const Parameter& parameter : parameters_) {
    specs.push_back({parameter.name, reduced_as(parameter.tensor), parameter.tensor.sizes().vec()});
  }
  return specs;
}

// Collective the first time: before the first gradient is written, so that addresses never change.
Reducer& ReplicaImpl::planned_reducer() {
  if (!trainer_->reducer()) trainer_->make_reducer();
  Reducer& reducer = *trainer_->reducer();
  if (planned_) return reducer;
  if (is_sharded()) order_.clear();  // who has which share is known already
  std::vector<char> in_graph(parameters_.size(), 0);
  for (const int index : order_) in_graph[static_cast<std::size_t>(index)] = 1;
  for (int i = static_cast<int>(parameters_.size()) - 1; i >= 0; --i) {
    if (!in_graph[static_cast<std::size_t>(i)]) order_.push_back(i);
  }
  // Shards are mostly as large as rank 0's first: those need no multiplication.
  const bool are_multiplied = !options_.weigh_outputs && options_.loss == Loss::mean;
  std::int64_t unit = are_multiplied ? unit_.value_or(std::max<std::int64_t>(trainer_->weight()->value_or(1), 1)) : 1;
  // A fixed unit in place of the first weight, which differs with the number of ranks.
  if (const Reproducible& same = options_.reproducible; same.is_on() && are_multiplied) {
    unit = data::shard_rows(same.batch_size, same.virtual_shards);
  }
  reducer.plan_order(order_, unit);
  unit_ = reducer.weight_unit();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const at::Tensor& tensor = parameter.tensor;
    const DType reduced = reduced_as(tensor);
    void* slice = reducer.gradient_data(static_cast<int>(i), reduced);
    const auto options = at::TensorOptions().dtype(scalar_type_of(reduced)).device(tensor.device());
    parameter.view = at::from_blob(
        slice, tensor.sizes(), parameter.strides, [memory = reducer.memory()](void*) {}, options, tensor.device());
    if (is_sharded()) continue;
    parameter.result = options.dtype() == tensor.dtype()
                           ? parameter.view
                           : at::empty_strided(tensor.sizes(), parameter.strides, tensor.options());
  }
  planned_ = true;
  return reducer;
}

GradientOptions ReplicaImpl::gradient_options() {
  return {.loss_weight = options_.loss == Loss::sum ? nullptr : trainer_->weight(),
          .before_backward = [weak = weak_from_this()] {
            if (const auto self = weak.lock()) self->plan_now();
          }};
}

// The plan blocks, and a rank whose loss leaves out what lies behind a collective has its first gradient only after it.
void ReplicaImpl::plan_now() {
  if (planned_ || (group_->size() == 1 && !always_needs_arena())) return;
  const OnCurrentStream ordered(*group_);
  planned_reducer();
}

std::int64_t ReplicaImpl::rows_of(const at::Tensor& tensor) const {
  const std::int64_t dim = options_.batch_dim;
  if (tensor.dim() == 0) return 1;
  if (dim < -tensor.dim() || dim >= tensor.dim()) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: DdpOptions::batch_dim is {}, and forward's first tensor has {} dimensions: "
        "which one counts rows?",
        dim, tensor.dim()));
  }
  return tensor.size(dim);
}

void ReplicaImpl::set_weight(const ::torch::nn::Module& module, std::int64_t weight) {
  if (in_capture_) {
    throw InvalidArgument(
        "DistributedDataParallel: set_weight within the loss of a CapturedStep, which replays would leave out; call "
        "the "
        "CapturedStep's before each step");
  }
  try {
    enter(module);
  } catch (...) {
    forward_failed(false);
    throw;
  }
  trainer_->set_weight(weight);
  // The program itself says how many terms the loss is the mean of: the loss need not come from the outputs.
  has_outputs_ = false;
}

void ReplicaImpl::before_forward(const ::torch::nn::Module& module, std::optional<std::int64_t> rows) {
  // In a scope of autocast casts may be older than the parameters' values, or, from an evaluation, lack a graph.
  at::autocast::clear_cache();
  if (!at::GradMode::is_enabled()) return;
  forwards_ = {forwards_.count + 1, rows};
  if (in_capture_) return;
  give_signal_stack();  // oneDNN's kernels run on this thread
  trains_ = module.is_training();
  try {
    enter(module);
    if (trains_) refuse_updates_without_backward();
    trainer_->begin_forward(rows);
    broadcast_buffers(module.is_training());
    seed_generators(module.is_training());
    if (trainer_->shard()) versions_before_forward_ = buffer_versions();
  } catch (...) {
    forward_failed(false);
    throw;
  }
}

void ReplicaImpl::forward_failed(bool others_wait) noexcept {
  if (!at::GradMode::is_enabled()) return;
  trainer_->keep_failure("forward");
  if (others_wait || trainer_->accumulating()) give_up();
}

void ReplicaImpl::after_forward(std::span<at::Tensor* const> outputs) {
  if (!at::GradMode::is_enabled()) return;
  has_outputs_ = std::ranges::any_of(
      outputs, [](const at::Tensor* output) { return output->defined() && output->requires_grad(); });
  is_differentiable_ = false;
  if (trains_ && has_outputs_) {
    if (group_->size() > 1) unreached_ = trained_versions();
    if (forwards_without_step_ && ++*forwards_without_step_ == kManyForwards) tell_of_no_backward();
  }
  if (order_.empty()) {
    std::vector<at::Tensor> roots;
    for (const at::Tensor* output : outputs) {
      if (output->defined()) roots.push_back(*output);
    }
    order_ = graph_order(roots, accumulators_);
  }
  for (at::Tensor* output : outputs) {
    *output = behind_boundary(*output, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || self->in_capture_) return 1.0;
      self->await_end();
      self->passed_outputs_ = true;
      self->is_differentiable_ |= at::GradMode::is_enabled();
      const bool weigh = self->options_.weigh_outputs && self->options_.loss == Loss::mean && !self->needs_no_arena();
      return weigh ? static_cast<double>(self->trainer_->weight()->value_or(1)) : 1.0;
    });
  }
}

void ReplicaImpl::broadcast_buffers(bool is_training) {
  if (!options_.broadcast_buffers || !is_training || trainer_->is_in_no_sync() || options_.reproducible.is_on()) return;
  const trace::Span span(trace::SpanKind::collective);
  broadcast_state_in_stream(*group_, buffers_);
  if (after_broadcast_) after_broadcast_();
}

void ReplicaImpl::seed_generators(bool is_training) {
  // With virtual shards there is always one: else noise would depend on which shards this rank had before.
  if (!is_training || !(options_.seed || options_.reproducible.is_on())) return;
  const int stream = random_stream();
  const bool goes_on =
      std::exchange(seeded_step_, steps()) == steps() && std::exchange(seeded_stream_, stream) == stream;
  seeded_stream_ = stream;
  seeded_forwards_ = goes_on ? seeded_forwards_ + 1 : 0;
  const auto seed = [&](const at::Device& device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(random_seed(seeded_forwards_));
  };
  seed(at::kCPU);
  if (const at::Device device = device_of(*group_); !device.is_cpu()) seed(device);
}

int ReplicaImpl::random_stream() const { return trainer_->shard() ? trainer_->shard()->index : group_->rank(); }

std::uint64_t ReplicaImpl::random_seed(std::uint32_t number) const {
  const std::uint64_t seed = options_.seed.value_or(0);
  const auto step = static_cast<std::uint64_t>(steps());
  const auto bits = philox({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), number,
                            static_cast<std::uint32_t>(random_stream())},
                           {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return bits[0] | std::uint64_t{bits[1]} << 32;
}

at::Generator ReplicaImpl::generator(std::uint32_t draw) const {
  constexpr std::uint32_t kNotAForward = 1u << 31;
  at::Generator of_process = at::globalContext().defaultGenerator(device_of(*group_));
  at::Generator own;
  {
    const std::lock_guard<std::mutex> lock(of_process.mutex());
    own = of_process.clone();
  }
  own.set_current_seed(random_seed(kNotAForward | draw));
  return own;
}

void ReplicaImpl::record_loss(const at::Tensor& loss) {
  refuse_late_loss();
  const auto dtype = loss.defined() ? dtype_of(loss.scalar_type()) : std::nullopt;
  if (!loss.defined() || loss.numel() != 1 || !dtype || !at::isFloatingType(loss.scalar_type())) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: record_loss got {}; a loss is one floating-point number",
                    loss.defined() ? fmt::format("{} elements of {}", loss.numel(), c10::toString(loss.scalar_type()))
                                   : "an undefined tensor"));
  }
  const DeviceId device = group_->device();
  if (device.kind == DeviceKind::cpu || !is_at_home(*group_, loss.device()))
    return trainer_->record_loss(loss.item<double>());
  const auto kept = std::make_shared<at::Tensor>(loss.detach());
  trainer_->record_loss({kept->data_ptr(), 1, *dtype, device}, current_stream(device), kept);
}

void ReplicaImpl::record_loss(double loss) {
  refuse_late_loss();
  trainer_->record_loss(loss);
}

std::vector<at::Tensor> ReplicaImpl::parameters() const {
  std::vector<at::Tensor> result;
  for (const Parameter& parameter : parameters_) result.push_back(parameter.tensor);
  return result;
}

std::uint64_t ReplicaImpl::versions() const {
  std::uint64_t sum = 0;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.is_inference()) sum += static_cast<std::uint64_t>(tensor._version());  // which have none
  };
  for (const NamedTensor& item : frozen_) add(item.tensor);
  return sum + trained_versions();
}

std::uint64_t ReplicaImpl::trained_versions() const {
  std::uint64_t sum = 0;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.tensor.is_inference()) sum += static_cast<std::uint64_t>(parameter.tensor._version());
  }
  return sum;
}

DivergenceCheck::Replica::State ReplicaImpl::dense_state() const {
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

void ReplicaImpl::check_replicas(const ::torch::nn::Module& module) {
  try {
    enter(module);
  } catch (...) {
    trainer_->keep_failure("replica check");
    trainer_->tell_failure();  // the others wait in it
    throw;
  }
  const OnCurrentStream ordered(*group_);
  const DivergenceCheck::Replica::State state = dense_state();
  lockstep::check_replicas(*group_, state.buffers);
}

}  // namespace lockstep::libtorch
