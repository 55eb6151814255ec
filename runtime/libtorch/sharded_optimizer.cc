// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/sharded_optimizer.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/torch_stream.h"
#include "runtime/base/exact_squares.h"
#include "runtime/comm/collective_call.h"
#include "runtime/libtorch/operators.h"
#include "runtime/libtorch/replica_engine.h"

namespace lockstep::libtorch {
namespace {

// Sums over the ranks, in place.
void sum(ProcessGroup& group, const char* call, void* data, std::int64_t count, DType dtype) {
  const OnCurrentStream ordered(group);
  comm::within_call(call, [&] { group.all_reduce({data, count, dtype, group.device()}).wait_on(group.stream()); });
}

}  // namespace

OptimizerShards::OptimizerShards(const Replica& replica) : engine_(replica.engine()) {
  if (!are_cut() && engine_->group->size() > 1) {
    throw InvalidArgument(
        "ShardedOptimizer: the DistributedDataParallel that it was given has no shards; make that object with {.shard "
        "= lockstep::Shard::optimizer}, or use torch's optimizer itself");
  }
  const auto& parameters = engine_->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    index_.emplace(parameters[i].tensor.unsafeGetTensorImpl(), i);
    if (are_cut()) index_.emplace(engine_->shards.tensors()[i].unsafeGetTensorImpl(), i);
  }
  engine_->shards.claim(true);
}

OptimizerShards::~OptimizerShards() { engine_->shards.claim(false); }

bool OptimizerShards::are_cut() const { return engine_->shards.are_cut(); }

at::Tensor OptimizerShards::whole_of(const at::Tensor& tensor) const {
  const auto found = index_.find(tensor.unsafeGetTensorImpl());
  return found == index_.end() ? tensor : engine_->parameters()[found->second].tensor;
}

void OptimizerShards::clear_gradients(bool set_to_none) { engine_->shards.clear_gradients(set_to_none); }

// torch's add_param_group() is not virtual, and param_groups() is anybody's: whole parameters, whose .grad is NaN, may
// come into the groups at any time.
void OptimizerShards::put_shards(Groups& groups) const {
  std::unordered_set<std::size_t> seen;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t k = 0; k < groups[g].params().size(); ++k) {
      at::Tensor& parameter = groups[g].params()[k];
      const auto found = index_.find(parameter.unsafeGetTensorImpl());
      if (found == index_.end() || !seen.insert(found->second).second) {
        throw InvalidArgument(fmt::format(
            "ShardedOptimizer: parameter {} of group {} is {}; give each tensor of ddp.parameters() once", k, g,
            found == index_.end() ? "not a parameter of its DistributedDataParallel"
                                  : "in the optimizer's groups twice"));
      }
      if (are_cut()) parameter = engine_->shards.tensors()[found->second];
    }
  }
}

OptimizerShards::Groups OptimizerShards::in_shards(Groups groups) const {
  put_shards(groups);
  return groups;
}

OptimizerShards::Groups OptimizerShards::all_in_shards() const {
  Groups groups;
  groups.emplace_back(std::vector<at::Tensor>());
  for (const auto& parameter : engine_->parameters()) groups.front().params().push_back(parameter.tensor);
  return in_shards(std::move(groups));
}

void OptimizerShards::step_shards(Groups& groups, const std::function<void()>& step) {
  at::autocast::clear_cache();  // of casts of the values before the step
  put_shards(groups);
  if (!are_cut()) return step();
  std::vector<at::Tensor> stepped;
  for (const auto& group : groups) {
    for (const at::Tensor& shard : group.params()) {
      if (shard.grad().defined()) stepped.push_back(shard);
    }
  }
  engine_->settle_lost();
  engine_->shards.update(step);
  if (stepped.empty()) return;
  // torch keeps gradients after a step. The next backward sees by this one whether zero_grad() of torch's class, which
  // knows the shards alone, was called: it drops it, or writes 0 there. A rank whose shards are empty has it too.
  const at::Tensor mark = at::full({1}, std::numeric_limits<double>::quiet_NaN(), stepped.front().options());
  for (const at::Tensor& shard : stepped) shard.mutable_grad() = mark;
}

at::Tensor OptimizerShards::agreed(const at::Tensor& found_inf) const {
  ProcessGroup& group = *engine_->group;
  const at::Tensor all = found_inf.to(device_of(group), at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
  sum(group, "GradScaler", all.data_ptr(), 1, DType::f32);
  return moved(all, found_inf.options());
}

double OptimizerShards::clip(Groups& groups, double max_norm) const {
  put_shards(groups);
  if (!(max_norm > 0))
    throw InvalidArgument(fmt::format(
        "clip_grad_norm: max_norm {} is not above 0; give the largest norm that a step may have", max_norm));
  const at::NoGradGuard no_grad;
  ProcessGroup& group = *engine_->group;
  std::vector<at::Tensor> gradients;  // by parameter, undefined without one
  bool has_float64 = false;           // on all ranks
  for (const auto& some : groups) {
    for (const at::Tensor& parameter : some.params()) {
      gradients.push_back(parameter.grad());
      has_float64 = has_float64 || parameter.scalar_type() == at::kDouble;
    }
  }
  double squares = 0;
  if (group.device().kind == DeviceKind::cpu) {
    std::vector<ExactSquares> of_floats(gradients.size());
    std::vector<ExactDoubleSquares> of_doubles(has_float64 ? gradients.size() : 0);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor& gradient = gradients[i];
      if (!gradient.defined()) continue;
      if (gradient.scalar_type() == at::kDouble) {
        of_doubles[i].add(gradient.contiguous().data_ptr<double>(), gradient.numel());
      } else {
        of_floats[i].add(gradient.to(at::kFloat).contiguous().data_ptr<float>(), gradient.numel());
      }
    }
    const auto add_up = [&](auto& exact) {
      if (are_cut() && !exact.empty()) {
        sum(group, "clip_grad_norm", exact.data(),
            static_cast<std::int64_t>(exact.size() * sizeof(exact[0]) / sizeof(std::int64_t)), DType::i64);
      }
      for (const auto& one : exact) squares += one.sum();
    };
    add_up(of_floats);
    add_up(of_doubles);
  } else {
    const at::Tensor all = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(device_of(group)));
    for (const at::Tensor& gradient : gradients) {
      if (gradient.defined()) all.add_(gradient.to(at::kDouble).pow(2).sum());
    }
    if (are_cut()) sum(group, "clip_grad_norm", all.data_ptr(), 1, DType::f64);
    squares = all.item<double>();
  }
  const double norm = std::sqrt(squares);
  const double factor = max_norm / (norm + 1e-6);  // as torch's
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined() && !(factor >= 1)) gradient.mul_(factor);
  }
  return norm;
}

void OptimizerShards::refuse_file(const char* call) {
  throw InvalidArgument(
      fmt::format("ShardedOptimizer: {}() was called, but each rank has only its shard of the state, so a file would "
                  "lack the shards of the other ranks; save with lockstep::libtorch::Snapshots, which saves all shards",
                  call));
}

}  // namespace lockstep::libtorch
