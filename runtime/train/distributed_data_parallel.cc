#include "lockstep/train/distributed_data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/ddp/broadcast_parameters.h"
#include "runtime/ddp/divergence_check.h"
#include "runtime/ddp/own_failure.h"

namespace lockstep {
namespace {

std::vector<ParameterSpec> specs_of(const nn::Module& model) {
  std::vector<ParameterSpec> specs;
  for (const auto& [name, tensor] : model.named_parameters()) {
    const auto extents = tensor.shape().extents();
    specs.push_back({name, tensor.dtype(), {extents.begin(), extents.end()}});
  }
  if (specs.empty()) {
    throw InvalidArgument("DistributedDataParallel: the model has no parameters; register them, or train without it");
  }
  return specs;
}

// Our tensors write gradients with the CPU's kernels.
std::shared_ptr<ProcessGroup> require_cpu(std::shared_ptr<ProcessGroup> group) {
  if (group && group->device().kind != DeviceKind::cpu) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: the model computes on the cpu, backend {} on {}; take a group on the cpu, "
        "or give the gradients of a device's kernels to a Reducer",
        group->backend(), group->device().str()));
  }
  return group;
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(nn::Module& model, std::shared_ptr<ProcessGroup> group,
                                                 const DdpOptions& options)
    : model_(model),
      group_(require_cpu(std::move(group))),
      parameters_(model.parameters()),
      reducer_(specs_of(model), group_, {.buckets = options.buckets, .loss = options.loss}),
      divergence_(divergence_check(options.compare_every)),
      failure_(std::make_unique<OwnFailure>(group_)),
      loss_(options.loss),
      seed_(options.seed) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_.emplace(parameters_[i].id(), static_cast<int>(i));
  std::vector<BufferView> values;
  for (const Tensor& parameter : parameters_) values.push_back(parameter.view());
  broadcast_parameters(*group_, values);
}

std::unique_ptr<DivergenceCheck> DistributedDataParallel::divergence_check(std::int64_t every) const {
  const auto versions = [this] {
    std::uint64_t sum = 0;
    for (const Tensor& parameter : parameters_) sum += parameter.version();
    return sum;
  };
  const auto state = [this] {
    DivergenceCheck::Replica::State all;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      all.buffers.push_back({reducer_.parameters()[i].name, parameters_[i].view()});
    }
    return all;
  };
  return std::make_unique<DivergenceCheck>(group_, every, DivergenceCheck::Replica{versions, state});
}

void DistributedDataParallel::watch(DataIdentity identity) { divergence_->watch(std::move(identity)); }

DistributedDataParallel::~DistributedDataParallel() {
  failure_->tell_if_unwinding(reducer_.accumulating());
  if (!planned_) return;
  for (const Tensor& parameter : parameters_) parameter.unbind_grad();
}

// Between micro-batches the others count on this rank for the step; else an exception may be caught.
template <typename Call>
Tensor DistributedDataParallel::in_forward(Call call) {
  failure_->forget();
  try {
    return call();
  } catch (...) {
    reducer_.accumulating() ? give_up("forward") : keep_failure("forward");
    throw;
  }
}

Tensor DistributedDataParallel::operator()(const Tensor& x) {
  return in_forward([&] {
    // Without ids, those of an earlier batch must not count for this one.
    if (std::exchange(ids_given_, false)) model_.set_context(context_of({}));
    return forward(x);
  });
}

Tensor DistributedDataParallel::operator()(const Tensor& x, std::vector<std::int64_t> ids) {
  if (x.shape().dims() == 0 || x.size(0) != static_cast<std::int64_t>(ids.size())) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the input is {} and came with {} sample ids; there must "
                    "be one per row of dimension 0",
                    x.str(), ids.size()));
  }
  return in_forward([&] {
    model_.set_context(context_of(std::move(ids)));
    ids_given_ = true;
    return forward(x);
  });
}

nn::ForwardContext DistributedDataParallel::context_of(std::vector<std::int64_t> ids) const {
  return {.seed = seed_, .step = static_cast<std::uint64_t>(step_), .sample_ids = std::move(ids)};
}

Tensor DistributedDataParallel::forward(const Tensor& x) {
  rows_ = x.shape().dims() == 0 ? 1 : x.size(0);
  return model_(x);
}

void DistributedDataParallel::plan(const Tensor& loss) {
  std::vector<int> order;
  std::vector<char> on_tape(parameters_.size(), 0);
  for (const Tensor& leaf : ready_order(loss)) {
    const auto found = index_.find(leaf.id());
    if (found == index_.end()) continue;  // a leaf of the user's own
    order.push_back(found->second);
    on_tape[static_cast<std::size_t>(found->second)] = 1;
  }
  // What the first loss does not depend on comes last: it waits for finish_step anyway.
  for (int i = static_cast<int>(parameters_.size()) - 1; i >= 0; --i) {
    if (!on_tape[static_cast<std::size_t>(i)]) order.push_back(i);
  }
  reducer_.plan_order(order);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].bind_grad(reducer_.gradient<float>(static_cast<int>(i)));
  }
  planned_ = true;
}

void DistributedDataParallel::keep_failure(std::string_view part) noexcept {
  failure_->keep(fmt::format("the {} of step {}", part, step_), std::current_exception());
}

void DistributedDataParallel::give_up(std::string_view part) noexcept {
  keep_failure(part);
  failure_->tell();
  reducer_.abandon_step(message_of(std::current_exception()));
}

std::int64_t DistributedDataParallel::backward(const Tensor& loss, const DdpBackwardOptions& options) {
  try {
    run_backward(loss, options);
  } catch (...) {
    give_up("backward");
    throw;
  }
  failure_->forget();
  if (options.synchronize) {
    ++step_;
    divergence_->judge(step_ - 1, reducer_.noted());  // what it throws, all ranks throw: no failure of this one's
  }
  return last_weight_;
}

void DistributedDataParallel::run_backward(const Tensor& loss, const DdpBackwardOptions& options) {
  const std::int64_t weight = options.weight.value_or(rows_);
  if (!planned_) plan(loss);
  last_loss_ = loss.item();
  const StepNote note = options.synchronize ? divergence_->note(step_) : StepNote{};
  reducer_.begin_step({.weight = weight, .synchronize = options.synchronize, .note = note});
  lockstep::backward(loss, static_cast<float>(loss_ == Loss::mean ? weight : std::min<std::int64_t>(weight, 1)),
                     {.accumulate = reducer_.accumulating(), .on_leaf_ready = [this](const Tensor& leaf) {
                        if (const auto found = index_.find(leaf.id()); found != index_.end()) {
                          reducer_.mark_ready(found->second);
                        }
                      }});
  last_weight_ = reducer_.finish_step();
  // A gradient that only other ranks contributed to lies in the arena without this rank's backward having touched it.
  for (const Tensor& parameter : parameters_) parameter.grad_for_writing();
}

}  // namespace lockstep
