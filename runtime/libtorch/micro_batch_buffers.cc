// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/micro_batch_buffers.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/libtorch/tensor_bytes.h"
#include "runtime/libtorch/trained_module.h"

namespace lockstep::libtorch {
namespace {

// The object whose step runs on this thread.
thread_local MicroBatchBuffers* running = nullptr;

// The name of a buffer's owner: "layers.1." of "layers.1.running_mean".
std::string prefix_of(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }

}  // namespace

// The functions that torch calls at the begin and the end of each operator. They must be plain functions.
struct MicroBatchBuffers::Observed {
  // Operators that normalise a batch, each of which may call the next; a ScriptModule begins with the second. Their
  // first inputs are input, weight, bias, running_mean and running_var; then all but the last have whether they train.
  static constexpr std::string_view kBatchNorms[] = {"aten::batch_norm",
                                                     "aten::_batch_norm_impl_index",
                                                     "aten::native_batch_norm",
                                                     "aten::_native_batch_norm_legit",
                                                     "aten::cudnn_batch_norm",
                                                     "aten::miopen_batch_norm",
                                                     "aten::_batch_norm_with_update"};
  // It calls batch_norm with copies of its statistics.
  static constexpr std::string_view kInstanceNorm = "aten::instance_norm";
  static bool is_observed(std::string_view name) {
    return name == kInstanceNorm || std::ranges::find(kBatchNorms, name) != std::end(kBatchNorms);
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    const std::string_view name = call.name();
    if (!is_observed(name) || running->depth_++ > 0 || name == kInstanceNorm) return nullptr;
    const auto inputs = call.inputs();
    if (inputs.size() < 6 || !inputs[3].isTensor() || !inputs[4].isTensor()) return nullptr;
    if (inputs[5].isBool() && !inputs[5].toBool()) return nullptr;
    const at::Tensor& input = inputs[0].toTensor();
    if (input.dim() < 2 || input.size(1) == 0) return nullptr;
    running->saw(inputs[3].toTensor(), inputs[4].toTensor(), input.numel() / input.size(1));
    return nullptr;
  }
  static void end(const at::RecordFunction& call, at::ObserverContext* /*of_begin*/) {
    if (is_observed(call.name())) --running->depth_;
  }
};

std::vector<const MicroBatchBuffers::Statistic*> MicroBatchBuffers::Norm::statistics() const {
  std::vector<const Statistic*> all{&mean, &var};
  if (count) all.push_back(&*count);
  return all;
}

std::vector<MicroBatchBuffers::Statistic*> MicroBatchBuffers::Norm::statistics() {
  std::vector<Statistic*> all{&mean, &var};
  if (count) all.push_back(&*count);
  return all;
}

MicroBatchBuffers::MicroBatchBuffers(const ::torch::nn::Module& module, const DdpOptions& options)
    : reproducible_(options.reproducible) {
  if (!reproducible_.is_on()) return;
  std::vector<NamedTensor> buffers = state_of(module);
  std::erase_if(buffers, [](const NamedTensor& item) { return item.is_parameter; });
  const auto take = [&](const std::string& name) -> std::optional<Statistic> {
    const auto found = std::ranges::find(buffers, name, &NamedTensor::name);
    if (found == buffers.end()) return std::nullopt;
    Statistic statistic{name, found->tensor, {}};
    buffers.erase(found);
    return statistic;
  };
  std::vector<std::string> names;
  for (const NamedTensor& item : buffers) names.push_back(item.name);
  require_named(options.buffer_rules, names);
  for (const std::string& name : names) {
    const std::string prefix = prefix_of(name);
    const auto has_rule = [&](const char* of) { return options.buffer_rules.contains(prefix + of); };
    if (name != prefix + "running_mean" || has_rule("running_mean") || has_rule("running_var") ||
        has_rule("num_batches_tracked")) {
      continue;
    }
    const auto is_float = [&](const std::string& of) {
      const auto found = std::ranges::find(buffers, of, &NamedTensor::name);
      return found != buffers.end() && at::isFloatingType(found->tensor.scalar_type());
    };
    if (!is_float(name) || !is_float(prefix + "running_var")) continue;
    norms_.push_back(
        {.mean = *take(name), .var = *take(prefix + "running_var"), .count = take(prefix + "num_batches_tracked")});
  }
  others_ = WrittenBuffers(std::move(buffers), options.buffer_rules);
}

std::vector<ParameterSpec> MicroBatchBuffers::specs() const {
  std::vector<ParameterSpec> specs;
  for (const Norm& norm : norms_) {
    const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
      const bool is_wide = norm.mean.tensor.scalar_type() == at::kDouble;
      specs.push_back({name, is_wide ? DType::f64 : DType::f32, std::move(shape)});
    };
    add(norm.mean.name, norm.mean.tensor.sizes().vec());
    add(norm.var.name, norm.var.tensor.sizes().vec());
    add(prefix_of(norm.mean.name) + "(values normalised)", {3});
  }
  if (others_.size() > 0) {
    specs.push_back({fmt::format("(written buffers{})", others_.describe_rules()),
                     DType::f32,
                     {static_cast<std::int64_t>(others_.size())}});
  }
  return specs;
}

MicroBatchBuffers::Step::Step(MicroBatchBuffers& buffers) : buffers_(buffers), outer_(running) {
  running = &buffers;
  buffers.is_begun_ = false;
  buffers.others_.begin_step();
}

void MicroBatchBuffers::Step::observe() {
  rest();
  buffers_.depth_ = 0;
  at::RecordFunctionCallback observer(&Observed::begin, &Observed::end);
  observer.needsInputs(true).scopes({at::RecordScope::FUNCTION});
  observer_ = at::addThreadLocalCallback(std::move(observer));
}

void MicroBatchBuffers::Step::rest() {
  if (observer_) at::removeCallback(*std::exchange(observer_, std::nullopt));
}

MicroBatchBuffers::Step::~Step() {
  rest();
  running = outer_;
  if (std::exchange(buffers_.is_begun_, false)) buffers_.restore();
}

void MicroBatchBuffers::restore() {
  const at::NoGradGuard no_grad;
  for (Norm& norm : norms_) {
    for (Statistic* statistic : norm.statistics()) statistic->tensor.copy_(statistic->before);
  }
  others_.restore();
}

void MicroBatchBuffers::begin_micro_batch() {
  const at::NoGradGuard no_grad;
  const bool is_first = !std::exchange(is_begun_, true);
  if (!is_first) restore();
  saw_another_module_ = false;
  for (Norm& norm : norms_) {
    norm.calls = norm.values = norm.degrees = 0;
    for (Statistic* statistic : norm.statistics()) {
      if (!statistic->before.defined()) statistic->before = at::empty_like(statistic->tensor);
      if (is_first) statistic->before.copy_(statistic->tensor);
      statistic->writes = writes_to(statistic->tensor);
    }
  }
  others_.begin_micro_batch();
}

void MicroBatchBuffers::begin_again() {
  restore();
  is_begun_ = true;
  others_.begin_step();
}

MicroBatchBuffers::Again::Again(MicroBatchBuffers& buffers) : buffers_(buffers) {
  for (Norm& norm : buffers.norms_) {
    for (Statistic* statistic : norm.statistics()) tensors_.push_back(statistic->tensor);
  }
  buffers.others_.list(tensors_);
  for (const at::Tensor& tensor : tensors_) values_.push_back(tensor.detach().clone());
  buffers.is_begun_ = true;
}

MicroBatchBuffers::Again::~Again() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].copy_(values_[i]);
  buffers_.is_begun_ = false;
}

void MicroBatchBuffers::saw(const at::Tensor& running_mean, const at::Tensor& running_var, std::int64_t values) {
  if (!running_mean.defined()) return;
  const auto found = std::ranges::find_if(norms_, [&](Norm& norm) { return norm.mean.tensor.is_same(running_mean); });
  if (found == norms_.end()) {
    saw_another_module_ |= !others_.saw_write(running_mean) || !others_.saw_write(running_var);
    return;
  }
  ++found->calls;
  if (values < 2) return;  // they have no variance
  found->values += values;
  found->degrees += values - 1;
}

void MicroBatchBuffers::refuse_other_writes(std::int64_t step) const {
  if (saw_another_module_) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: in step {} a batch norm that trains and is not part of the wrapped module ran in a "
        "fixed micro-batch, so its running statistics would depend on the micro-batches that this rank has; call "
        "eval() on its network, or wrap both networks in one module",
        step));
  }
  for (const Norm& norm : norms_) {
    if (norm.calls > 0) continue;
    for (const Statistic* statistic : norm.statistics()) {
      if (writes_to(statistic->tensor) == statistic->writes && has_equal_bytes(statistic->tensor, statistic->before)) {
        continue;
      }
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: the forward of step {} wrote '{}' without torch's batch_norm, so it is "
                      "not known how the values of fixed micro-batches are combined; say it in "
                      "DdpOptions::buffer_rules, for each buffer of that layer",
                      step, statistic->name));
    }
  }
  if (written_on_device_.empty()) return;
  if (const auto name = others_.written_besides(written_on_device_)) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: the forward of step {} wrote the buffer '{}', which no forward of the "
        "first step had written; on a device the first step decides which buffers are combined: write it in "
        "the first step too, or keep it out of the module",
        step, *name));
  }
}

void MicroBatchBuffers::add_to(std::span<at::Tensor> views, std::int64_t rows) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < norms_.size(); ++i) {
    const Norm& norm = norms_[i];
    const auto values = static_cast<double>(norm.values), degrees = static_cast<double>(norm.degrees);
    const auto add = [](at::Tensor view, const Statistic& statistic, double weight) {
      view.copy_(statistic.tensor - statistic.before).mul_(weight);
    };
    add(views[3 * i], norm.mean, values);
    add(views[3 * i + 1], norm.var, degrees);
    const at::Tensor& numbers = views[3 * i + 2];
    numbers[0].fill_(values);
    numbers[1].fill_(degrees);
    if (norm.count) {
      add(numbers[2], *norm.count, values);
    } else {
      numbers[2].zero_();
    }
  }
  if (others_.size() == 0) return;
  std::vector<float> is_written;
  for (const bool is : others_.end_micro_batch(rows)) is_written.push_back(is ? 1.0f : 0.0f);
  views.back().copy_(at::tensor(is_written));
}

std::string MicroBatchBuffers::finish_step(std::span<const at::Tensor> views, ProcessGroup& group) {
  if (!std::exchange(is_begun_, false)) return "";
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < norms_.size(); ++i) {
    const at::Tensor values = views[3 * i + 2][0], degrees = views[3 * i + 2][1];
    const auto write = [](Statistic& statistic, const at::Tensor& sum, const at::Tensor& weight) {
      const at::Tensor change =
          at::isFloatingType(statistic.tensor.scalar_type()) ? sum / weight : (sum / weight).round();
      // Without any values, of any rank, the buffer keeps its values.
      statistic.tensor.copy_(statistic.before + at::where(weight > 0, change, at::zeros_like(change)));
    };
    write(norms_[i].mean, views[3 * i], values);
    write(norms_[i].var, views[3 * i + 1], degrees);
    if (norms_[i].count) write(*norms_[i].count, views[3 * i + 2][2], values);
  }
  if (others_.size() == 0) return "";
  std::vector<bool> is_written = written_on_device_;
  if (is_written.empty()) {
    const at::Tensor sums = views.back().cpu();
    for (std::int64_t i = 0; i < sums.size(0); ++i) is_written.push_back(sums[i].item<float>() > 0);
    // The host must not wait for the device in each step to learn that a mask is not written.
    if (!views.back().is_cpu()) written_on_device_ = is_written;
  }
  const int most = (reproducible_.micro_batches + group.size() - 1) / group.size();
  return others_.combine(is_written, most, group);
}

}  // namespace lockstep::libtorch
