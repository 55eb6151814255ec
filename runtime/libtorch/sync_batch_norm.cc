// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/sync_batch_norm.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/torch_stream.h"
#include "lockstep/trace/span.h"
#include "runtime/libtorch/node.h"

namespace lockstep::libtorch {
namespace {

using ::torch::autograd::SavedVariable;
using ::torch::autograd::variable_list;

BufferView doubles(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.numel(), DType::f64, device_id_of(tensor.device())};
}

// In float64, where the input is.
at::TensorOptions doubles_beside(const at::Tensor& input) {
  return at::TensorOptions().dtype(at::kDouble).device(input.device());
}

// All but the channels.
std::vector<std::int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t d = 2; d < input.dim(); ++d) dims.push_back(d);
  return dims;
}

// A value per channel, to be spread over an input.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.to(input.scalar_type()).view(shape);
}

// Over all ranks, per channel, in float64, where the input is: on a device the host does not know them.
struct Statistics {
  at::Tensor count;  // one element
  at::Tensor mean;
  at::Tensor variance;  // divided by count
};

// Exact in the sense of Chan et al.: each rank's variance is about its own mean, and the variance between the means is
// added, so that no digits cancel.
Statistics gather_statistics(ProcessGroup& group, const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  const std::int64_t count = channels == 0 ? 0 : input.numel() / channels;
  const at::Tensor own = at::zeros({1 + 2 * channels}, doubles_beside(input));
  if (count > 0) {
    const auto dims = reduced_dims(input);
    const auto [variance, mean] = at::var_mean(input, dims, /*unbiased=*/false);
    own.slice(0, 0, 1).fill_(static_cast<double>(count));
    own.slice(0, 1, 1 + channels).copy_(mean);
    own.slice(0, 1 + channels).copy_(variance);
  }
  const at::Tensor all = at::empty({group.size(), 1 + 2 * channels}, doubles_beside(input));
  const OnCurrentStream ordered(group);
  const trace::Span span(trace::SpanKind::collective);
  ordered.wait(group.all_gather(doubles(own), doubles(all)));
  const at::Tensor counts = all.slice(1, 0, 1);
  const at::Tensor means = all.slice(1, 1, 1 + channels);
  Statistics result;
  result.count = counts.sum(0);
  const at::Tensor shares = counts / result.count.clamp_min(1);
  result.mean = (means * shares).sum(0);
  result.variance = ((all.slice(1, 1 + channels) + (means - result.mean).square()) * shares).sum(0);
  return result;
}

struct SyncNormBackward : ::torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override;
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    input.reset_data();
    scale_of_channel.reset_data();
  }
  std::string name() const override { return "LockstepSyncNormBackward"; }

  // The gradients of all ranks' losses by this rank's mean and variance, per unit of this rank's own loss.
  std::pair<at::Tensor, at::Tensor> share_sums(const at::Tensor& sum, const at::Tensor& sum_centred) const;

  SavedVariable input;
  SavedVariable scale_of_channel;  // the module's weight; may be undefined
  at::Tensor mean;                 // per channel, float64
  at::Tensor invstd;
  std::int64_t own_count = 0;
  at::Tensor count;  // of all ranks
  std::shared_ptr<ProcessGroup> group;
  LossWeight loss_weight;
  std::function<void()> before_collective;  // may be empty
};

std::pair<at::Tensor, at::Tensor> SyncNormBackward::share_sums(const at::Tensor& sum,
                                                               const at::Tensor& sum_centred) const {
  const std::int64_t weight = loss_weight && loss_weight->has_value() ? **loss_weight : 1;
  if (weight == 0 && own_count > 0) {
    throw InvalidArgument(
        fmt::format("SyncBatchNorm: this rank's loss has the weight 0, but its {} values per channel change the other "
                    "ranks' losses; give this rank 0 rows, or a weight above 0",
                    own_count));
  }
  // 0 * NaN, of a mean over no rows, must not enter a sum.
  const at::Tensor sums =
      weight == 0 ? at::zeros({2, sum.numel()}, sum.options()) : at::stack({sum, sum_centred}) * weight;
  if (before_collective) before_collective();
  const OnCurrentStream ordered(*group);
  const trace::Span span(trace::SpanKind::collective);
  ordered.wait(group->all_reduce(doubles(sums)));
  const at::Tensor means = sums / (count.clamp_min(1) * std::max<std::int64_t>(weight, 1));
  return {means[0], means[1]};
}

variable_list SyncNormBackward::apply(variable_list&& gradients) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const at::Tensor x = input.unpack();
  const at::Tensor gamma = scale_of_channel.unpack();
  const at::Tensor dy = gradients[0].defined() ? gradients[0] : at::zeros_like(x);
  if (at::GradMode::is_enabled() && dy.requires_grad()) {
    throw InvalidArgument(
        "SyncBatchNorm: the gradient of a SyncBatchNorm can't be differentiated again; call backward() without "
        "create_graph");
  }
  const auto dims = reduced_dims(x);
  const at::Tensor centred = x - per_channel(mean, x);
  const at::Tensor sum = at::sum(dy, dims, false, at::kDouble);
  const at::Tensor sum_centred = at::sum(dy * centred, dims, false, at::kDouble);
  variable_list results(3);
  if (should_compute_output(0)) {
    const auto [shared, shared_centred] = share_sums(sum, sum_centred);
    const at::Tensor factor = gamma.defined() ? invstd * gamma.to(at::kDouble) : invstd;
    results[0] = (dy - per_channel(shared, x) - centred * per_channel(shared_centred * invstd.square(), x)) *
                 per_channel(factor, x);
  }
  if (should_compute_output(1)) results[1] = (sum_centred * invstd).to(gamma.scalar_type());
  if (should_compute_output(2)) results[2] = sum.to(gamma.scalar_type());
  return results;
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const ::torch::nn::BatchNormOptions& the_options,
                                     std::shared_ptr<ProcessGroup> group)
    : NormImplBase(the_options), group_(std::move(group)) {}

void SyncBatchNormImpl::join(std::shared_ptr<ProcessGroup> group, LossWeight loss_weight,
                             std::function<void()> before_backward) const {
  if (!group_) group_ = std::move(group);
  weight_of_loss_ = std::move(loss_weight);
  before_backward_ = std::move(before_backward);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::libtorch::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps() << ")";
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options.num_features()) {
    throw InvalidArgument(
        fmt::format("SyncBatchNorm: the input has {} dimensions, with {} in dimension 1, but it must be [N, {}] or [N, "
                    "{}, ...]; give such an input, or make the norm with the input's channels",
                    input.dim(), input.dim() < 2 ? 0 : input.size(1), options.num_features(), options.num_features()));
  }
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  return is_collective() ? normalize_together(input) : normalize_alone(input);
}

bool SyncBatchNormImpl::uses_batch() const { return is_training() || !options.track_running_stats(); }

bool SyncBatchNormImpl::is_collective() const { return uses_batch() && group_ && group_->size() > 1; }

at::Tensor SyncBatchNormImpl::normalize_alone(const at::Tensor& input) {
  if (uses_batch() && input.numel() == 0) return input * 1;  // no statistics of nothing
  double momentum = 0;
  if (is_training() && options.track_running_stats()) {
    num_batches_tracked += 1;
    momentum =
        options.momentum() ? *options.momentum() : 1.0 / static_cast<double>(num_batches_tracked.item<std::int64_t>());
  }
  return at::batch_norm(input, weight, bias, running_mean, running_var, uses_batch(), momentum, options.eps(),
                        /*cudnn_enabled=*/false);
}

// If no rank has rows, the statistics keep their values.
void SyncBatchNormImpl::update_running(const at::Tensor& mean, const at::Tensor& variance, const at::Tensor& count) {
  const at::Tensor is_some = count.gt(0);
  num_batches_tracked += is_some.to(num_batches_tracked.scalar_type()).squeeze(0);
  const at::Tensor momentum = (options.momentum() ? at::full_like(count, *options.momentum())
                                                  : num_batches_tracked.to(at::kDouble).clamp_min(1).reciprocal()) *
                              is_some;
  const at::Tensor unbiased = variance * (count / (count - 1).clamp_min(1));
  const auto move = [&](at::Tensor& running, const at::Tensor& to) {
    running.copy_(running.to(at::kDouble) * (1 - momentum) + to * momentum);
  };
  move(running_mean, mean);
  move(running_var, unbiased);
}

at::Tensor SyncBatchNormImpl::normalize_together(const at::Tensor& input) {
  const bool records =
      at::GradMode::is_enabled() && (input.requires_grad() || (weight.defined() && weight.requires_grad()));
  const auto node = make_node<SyncNormBackward>();
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    const Statistics all = gather_statistics(*group_, input);
    // On a device the host would have to wait to know it.
    if (input.is_cpu() && all.count.item<double>() == 1) {
      throw InvalidArgument(
          "SyncBatchNorm: all ranks together have 1 value per channel, which has no variance; train on more rows");
    }
    if (is_training() && options.track_running_stats()) update_running(all.mean, all.variance, all.count);
    node->mean = all.mean;
    node->invstd = (all.variance + options.eps()).rsqrt();
    node->count = all.count;
    const at::Tensor scale = weight.defined() ? node->invstd * weight.to(at::kDouble) : node->invstd;
    const at::Tensor shift = bias.defined() ? bias.to(at::kDouble) - all.mean * scale : -all.mean * scale;
    output = at::addcmul(per_channel(shift, input), input, per_channel(scale, input));
  }
  if (!records) return output;
  node->own_count = input.size(1) == 0 ? 0 : input.numel() / input.size(1);
  node->group = group_;
  node->loss_weight = weight_of_loss_;
  node->before_collective = before_backward_;
  node->input = SavedVariable(input, /*is_output=*/false);
  node->scale_of_channel = SavedVariable(weight, /*is_output=*/false);
  const auto edge = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad() ? ::torch::autograd::impl::gradient_edge(tensor)
                                                      : ::torch::autograd::Edge();
  };
  node->set_next_edges({edge(input), edge(weight), edge(bias)});
  ::torch::autograd::set_history(output, node);
  return output;
}

namespace {

using Group = std::shared_ptr<ProcessGroup>;

// A batch norm that may be exchanged: its place, and its replacement.
struct Exchange {
  ::torch::nn::SequentialImpl* owner = nullptr;
  std::size_t position = 0;
  std::string name;  // within the owner
  std::shared_ptr<SyncBatchNormImpl> replacement;
};

template <typename Norm>
std::shared_ptr<SyncBatchNormImpl> converted(const ::torch::nn::Module& module, const Group& group) {
  const auto* norm = dynamic_cast<const Norm*>(&module);
  return norm == nullptr ? nullptr : SyncBatchNormImpl::in_place_of(*norm, group);
}

std::shared_ptr<SyncBatchNormImpl> replacement_of(const ::torch::nn::Module& module, const Group& group) {
  auto result = converted<::torch::nn::BatchNorm1dImpl>(module, group);
  if (!result) result = converted<::torch::nn::BatchNorm2dImpl>(module, group);
  if (!result) result = converted<::torch::nn::BatchNorm3dImpl>(module, group);
  return result;
}

void find_exchanges(::torch::nn::Module& module, const Group& group, const std::string& prefix,
                    std::vector<Exchange>& exchanges, std::vector<std::string>& members) {
  auto* sequential = dynamic_cast<::torch::nn::SequentialImpl*>(&module);
  std::size_t position = 0;
  for (const auto& item : module.named_children()) {
    const std::string name = prefix.empty() ? item.key() : prefix + "." + item.key();
    if (auto replacement = replacement_of(*item.value(), group)) {
      if (sequential != nullptr) {
        exchanges.push_back({sequential, position, item.key(), std::move(replacement)});
      } else {
        members.push_back("'" + name + "'");
      }
    } else {
      find_exchanges(*item.value(), group, name, exchanges, members);
    }
    ++position;
  }
}

}  // namespace

template <typename Norm>
std::shared_ptr<SyncBatchNormImpl> SyncBatchNormImpl::in_place_of(const Norm& norm,
                                                                  std::shared_ptr<ProcessGroup> group) {
  auto result = std::make_shared<SyncBatchNormImpl>(norm.options, std::move(group));
  result->train(norm.is_training());
  if (norm.options.affine()) {
    result->parameters_["weight"] = result->weight = norm.weight;
    result->parameters_["bias"] = result->bias = norm.bias;
  }
  if (norm.options.track_running_stats()) {
    result->running_mean.set_data(norm.running_mean);
    result->running_var.set_data(norm.running_var);
    result->num_batches_tracked.set_data(norm.num_batches_tracked);
  }
  return result;
}

void convert_sync_batch_norm(::torch::nn::Module& module, const std::shared_ptr<ProcessGroup>& group) {
  if (replacement_of(module, group)) {
    throw InvalidArgument(
        "convert_sync_batch_norm: the module is a batch norm itself, and this function can only replace norms inside "
        "of a module; make the norm a lockstep::libtorch::SyncBatchNorm, or put it into a torch::nn::Sequential");
  }
  std::vector<Exchange> exchanges;
  std::vector<std::string> members;
  find_exchanges(module, group, "", exchanges, members);
  if (!members.empty()) {
    throw InvalidArgument(
        fmt::format("convert_sync_batch_norm: {} can't be replaced, since only norms in a torch::nn::Sequential can; "
                    "declare these members as lockstep::libtorch::SyncBatchNorm",
                    fmt::join(members, ", ")));
  }
  for (const Exchange& it : exchanges) {
    *(it.owner->begin() + static_cast<std::ptrdiff_t>(it.position)) = ::torch::nn::AnyModule(it.replacement);
    it.owner->replace_module(it.name, it.replacement);
  }
}

}  // namespace lockstep::libtorch
