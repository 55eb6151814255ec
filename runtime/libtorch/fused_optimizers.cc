// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/fused_optimizers.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/serialize.h>
#include <torch/serialize.h>

#include <map>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/libtorch/operators.h"
#include "runtime/libtorch/optimizer_state.h"
#include "runtime/libtorch/tensor_bytes.h"

// All three operators, on CPUs too.
#define LOCKSTEP_HAS_FUSED_OPERATORS LOCKSTEP_TORCH_AT_LEAST(2, 4)

namespace lockstep::libtorch {
namespace {

template <typename Base>
struct Traits;
template <>
struct Traits<::torch::optim::AdamW> {
  using State = ::torch::optim::AdamWParamState;
  using Options = ::torch::optim::AdamWOptions;
  static constexpr const char* kName = "FusedAdamW";
  static constexpr const char* kOperator = "aten::_fused_adamw_";
};
template <>
struct Traits<::torch::optim::Adam> {
  using State = ::torch::optim::AdamParamState;
  using Options = ::torch::optim::AdamOptions;
  static constexpr const char* kName = "FusedAdam";
  static constexpr const char* kOperator = "aten::_fused_adam_";
};
template <>
struct Traits<::torch::optim::SGD> {
  using State = ::torch::optim::SGDParamState;
  using Options = ::torch::optim::SGDOptions;
  static constexpr const char* kName = "FusedSGD";
  static constexpr const char* kOperator = "aten::_fused_sgd_";
};

template <typename Base>
using StateOf = FusedState<typename Traits<Base>::State>;

template <typename Base, typename Visit>
void each_parameter(const Base& optimizer, Visit visit) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) visit(parameter);
  }
}

#if LOCKSTEP_HAS_FUSED_OPERATORS

bool is_narrow(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// A GradScaler's scale and found_inf on one device.
struct Scaled {
  at::Tensor grad_scale;  // undefined: 1
  at::Tensor found_inf;  // undefined: nothing was looked for; else 0 or 1, the value by which the operators skip a step
};

Scaled scaled_on(const at::Tensor& like, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  Scaled result;
  const auto options = like.options().dtype(at::kFloat);
  if (grad_scale.defined()) result.grad_scale = moved(grad_scale, options).reshape({});
  if (found_inf.defined()) result.found_inf = moved(found_inf, options).reshape({}).ne(0).to(at::kFloat);
  return result;
}

// Parameters that one call of the operator steps.
template <typename Base>
struct Batch {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> values;  // the parameters, their masters, or copies of those that have gaps
  std::vector<StateOf<Base>*> states;

  template <typename Get>
  std::vector<at::Tensor> of_states(Get get) const {
    std::vector<at::Tensor> result;
    for (StateOf<Base>* const state : states) result.push_back(get(*state));
    return result;
  }
};

// The place of a parameter among the batches: device, dtype, and the result of prepare().
using BatchKey = std::tuple<at::DeviceType, at::DeviceIndex, at::ScalarType, bool>;

// If a parameter is not its rounded master any more, other code has written it, and the master takes its value.
template <typename State>
const at::Tensor& master_of(const at::Tensor& parameter, State& state) {
  if (!state.master.defined()) {
    state.master = parameter.to(at::kFloat);
  } else if (state.rounded_version != parameter._version()) {
    const at::Tensor is_rounded = state.master.to(parameter.scalar_type()).eq(parameter);
    state.master.copy_(at::where(is_rounded, state.master, parameter.to(at::kFloat)));
  }
  return state.master;
}

// Whether two tensors of the same sizes have one dtype, and their elements in the same order in memory. The operators
// read nothing but memory.
bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  bool alike = a.scalar_type() == b.scalar_type();
  for (std::int64_t d = 0; d < a.dim(); ++d) alike = alike && (a.size(d) == 1 || a.stride(d) == b.stride(d));
  return alike;
}

// The operators can't step a parameter with gaps in its memory, such as a column slice: a copy without them is stepped.
template <typename State>
at::Tensor value_of(const at::Tensor& parameter, State& state) {
  if (is_narrow(parameter)) return master_of(parameter, state);
  return parameter.is_non_overlapping_and_dense() ? parameter : parameter.contiguous();
}

// Moments that torch's class kept for a 16-bit parameter have its dtype. Moments of a file, and of a parameter that got
// other strides, lie in another order.
void make_moment(at::Tensor& field, const at::Tensor& value) {
  if (!field.defined()) {
    field = at::zeros_like(value);
  } else if (!lie_alike(field, value)) {
    field = at::empty_like(value).copy_(field);
  }
}

// Makes the tensors that the first step of a state needs. Returns whether momentum_buffer is to become this gradient.
template <typename State>
requires requires(State& state) { state.exp_avg(); }
bool prepare(State& state, const at::Tensor& value, const auto& options) {
  make_moment(state.exp_avg(), value);
  make_moment(state.exp_avg_sq(), value);
  if (options.amsgrad()) make_moment(state.max_exp_avg_sq(), value);
  if (!state.taken.defined()) {
    state.taken = at::full({}, static_cast<double>(state.step()), value.options().dtype(at::kFloat));
  }
  return false;
}

bool prepare(FusedState<::torch::optim::SGDParamState>& state, const at::Tensor& value,
             const ::torch::optim::SGDOptions& options) {
  if (options.momentum() == 0) return false;
  const bool is_first = !state.momentum_buffer().defined();
  make_moment(state.momentum_buffer(), value);
  // Without dampening a buffer of zeros gives the first step's result, whether or not a step was left out before.
  return is_first && options.dampening() != 0;
}

template <typename Base>
void run(const Batch<Base>& batch, const std::vector<at::Tensor>& gradients,
         const typename Traits<Base>::Options& options, const Scaled& scaled, bool) {
  const auto taken = batch.of_states([](auto& state) { return state.taken; });
  std::vector<at::Tensor> largest;
  if (options.amsgrad()) largest = batch.of_states([](auto& state) { return state.max_exp_avg_sq(); });
  at::_foreach_add_(taken, 1);
  const auto call = [&](auto fused) {
    fused(batch.values, gradients, batch.of_states([](auto& state) { return state.exp_avg(); }),
          batch.of_states([](auto& state) { return state.exp_avg_sq(); }), largest, taken, options.lr(),
          std::get<0>(options.betas()), std::get<1>(options.betas()), options.weight_decay(), options.eps(),
          options.amsgrad(), /*maximize=*/false, optional_of(scaled.grad_scale), optional_of(scaled.found_inf));
  };
  if constexpr (std::is_same_v<Base, ::torch::optim::AdamW>) {
    call([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    call([](const auto&... arguments) { at::_fused_adam_(arguments...); });
  }
  if (scaled.found_inf.defined()) at::_foreach_sub_(taken, std::vector<at::Tensor>(taken.size(), scaled.found_inf));
  for (auto* const state : batch.states) {
    state->step(state->step() + 1);
    state->is_uncertain = state->is_uncertain || scaled.found_inf.defined();
  }
}

template <>
void run(const Batch<::torch::optim::SGD>& batch, const std::vector<at::Tensor>& gradients,
         const ::torch::optim::SGDOptions& options, const Scaled& scaled, bool is_first) {
  std::vector<at::Tensor> buffers;
  if (options.momentum() != 0) buffers = batch.of_states([](auto& state) { return state.momentum_buffer(); });
  at::_fused_sgd_(batch.values, gradients, buffers, options.weight_decay(), options.momentum(), options.lr(),
                  options.dampening(), options.nesterov(), /*maximize=*/false, is_first, optional_of(scaled.grad_scale),
                  optional_of(scaled.found_inf));
}

template <typename Base>
void step_batch(const Batch<Base>& batch, const typename Traits<Base>::Options& options, const Scaled& scaled,
                bool is_first) {
  std::vector<at::Tensor> gradients, from, to;
  for (std::size_t i = 0; i < batch.values.size(); ++i) {
    gradients.push_back(batch.parameters[i].grad());
    if (lie_alike(gradients.back(), batch.values[i])) continue;
    from.push_back(std::exchange(gradients.back(), at::empty_like(batch.values[i])));
    to.push_back(gradients.back());
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  run<Base>(batch, gradients, options, scaled, is_first);
  from.clear();
  to.clear();
  for (std::size_t i = 0; i < batch.values.size(); ++i) {
    if (batch.values[i].is_same(batch.parameters[i])) continue;
    from.push_back(batch.values[i]);
    to.push_back(batch.parameters[i]);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  if (!is_narrow(batch.parameters.front())) return;
  for (std::size_t i = 0; i < batch.states.size(); ++i) {
    batch.states[i]->rounded_version = batch.parameters[i]._version();
  }
}

template <typename Base>
void check_tensors(Base& optimizer) {
  auto& states = optimizer.state();
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& parameters = optimizer.param_groups()[g].params();
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      const at::Tensor& parameter = parameters[k];
      const auto refuse = [&](std::string_view why) {
        throw InvalidArgument(
            fmt::format("{}: parameter {} of group {} can't be stepped, because {}", Traits<Base>::kName, k, g, why));
      };
      const auto check = [&](const char* what, const at::Tensor& tensor) {
        const bool is_dense = tensor.layout() == at::kStrided;
        if (!is_dense || !at::isFloatingType(tensor.scalar_type())) {
          refuse(
              fmt::format("a {} is {}; a fused step takes only dense floating-point tensors: give this parameter to "
                          "one of torch's own optimizers",
                          what, is_dense ? c10::toString(tensor.scalar_type()) : "sparse"));
        }
        if (tensor.sizes() != parameter.sizes() || tensor.device() != parameter.device()) {
          refuse(fmt::format(
              "the {} of this parameter has sizes [{}] on {}, but the parameter itself has sizes [{}] on {}; load the "
              "state that belongs to this model, and make a new optimizer after a parameter was replaced",
              what, fmt::join(tensor.sizes(), ", "), tensor.device().str(), fmt::join(parameter.sizes(), ", "),
              parameter.device().str()));
        }
      };
      check("parameter", parameter);
      if (!parameter.grad().defined()) continue;  // as most have none when shards are stepped bucket by bucket
      if (elements_share_memory(parameter)) {
        refuse(
            fmt::format("the elements of this parameter share memory (sizes [{}], strides [{}]), so they can't be "
                        "updated; train the parameter's clone(at::MemoryFormat::Contiguous)",
                        fmt::join(parameter.sizes(), ", "), fmt::join(parameter.strides(), ", ")));
      }
      check("gradient", parameter.grad());
      const auto found = states.find(state_key<std::decay_t<decltype(states)>>(parameter));
      if (found == states.end()) continue;
      each_field(fused_state_in<typename Traits<Base>::State>(found->second), [&](const char* field, auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
          if (value.defined()) check(field, value);
        }
      });
    }
  }
}

// Only the device knows whether the first step is taken, after which dampening counts; the operator asks the host.
void check_dampening(::torch::optim::SGD& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const ::torch::optim::SGDOptions&>(group.options());
    if (options.momentum() == 0 || options.dampening() == 0) continue;
    throw InvalidArgument(
        fmt::format("FusedSGD: dampening is {}, and must be 0 in a step with found_inf, such as a GradScaler's; set "
                    "dampening to 0, or take torch's SGD",
                    options.dampening()));
  }
}

template <typename Base>
void step_fused(Base& optimizer, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  if constexpr (std::is_same_v<Base, ::torch::optim::SGD>) {
    if (found_inf.defined()) check_dampening(optimizer);
  }
  check_tensors(optimizer);
  const at::NoGradGuard no_grad;
  std::map<std::pair<at::DeviceType, at::DeviceIndex>, Scaled> by_device;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const typename Traits<Base>::Options&>(group.options());
    std::map<BatchKey, Batch<Base>> batches;
    for (const at::Tensor& tensor : group.params()) {
      if (!tensor.grad().defined()) continue;
      const at::Device device = tensor.device();
      Scaled& scaled = by_device[{device.type(), device.index()}];
      if (found_inf.defined() && !scaled.found_inf.defined()) scaled = scaled_on(tensor, grad_scale, found_inf);
      auto& states = optimizer.state();
      StateOf<Base>& state =
          fused_state_in<typename Traits<Base>::State>(states[state_key<std::decay_t<decltype(states)>>(tensor)]);
      const at::Tensor value = value_of(tensor, state);
      const bool is_first = prepare(state, value, options);
      Batch<Base>& batch = batches[{device.type(), device.index(), tensor.scalar_type(), is_first}];
      batch.parameters.push_back(tensor);
      batch.values.push_back(value);
      batch.states.push_back(&state);
    }
    for (const auto& [key, batch] : batches) {
      step_batch(batch, options, by_device[{std::get<0>(key), std::get<1>(key)}], std::get<3>(key));
    }
  }
}

#else

template <typename Base>
void step_fused(Base&, const at::Tensor&, const at::Tensor&) {}  // is_fused() is false

#endif

// torch's own step does not update the masters, which would be stale afterwards.
template <typename Base>
void prepare_for_torch(Base& optimizer) {
  static const bool once = [] {
    log_warn("{}: LibTorch " TORCH_VERSION
             " lacks {} for these parameters: it steps as torch's optimizer does, without "
             "float32 masters of 16-bit parameters; take LibTorch 2.4 or newer",
             Traits<Base>::kName, Traits<Base>::kOperator);
    return true;
  }();
  (void)once;
  for (auto& [key, any] : optimizer.state()) {
    if (auto* const state = dynamic_cast<StateOf<Base>*>(any.get())) state->master = at::Tensor();
  }
}

}  // namespace

template <typename Base>
bool Fused<Base>::is_fused() const {
#if LOCKSTEP_HAS_FUSED_OPERATORS
  bool is = true;
  std::optional<at::DispatchKeySet> last;
  each_parameter(*this, [&](const at::Tensor& parameter) {
    if (last == parameter.key_set()) return;
    last = parameter.key_set();
    is = is && has_operator(Traits<Base>::kOperator, parameter);
  });
  return is;
#else
  return false;
#endif
}

template <typename Base>
at::Tensor Fused<Base>::step(::torch::optim::Optimizer::LossClosure closure) {
  at::autocast::clear_cache();  // of casts of the values before the step
  if (!is_fused()) {
    prepare_for_torch<Base>(*this);
    return Base::step(std::move(closure));
  }
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  step_fused<Base>(*this, {}, {});
  return loss;
}

template <typename Base>
void Fused<Base>::step_scaled(const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  if (!found_inf.defined()) {
    throw InvalidArgument(
        fmt::format("{}: found_inf is undefined; give a tensor of one element, or call step()", Traits<Base>::kName));
  }
  if (is_fused()) return step_fused<Base>(*this, grad_scale, found_inf);
  if (found_inf.item<float>() != 0) return;
  if (grad_scale.defined()) {
    const at::NoGradGuard no_grad;
    each_parameter(*this, [&](const at::Tensor& parameter) {
      if (parameter.grad().defined())
        parameter.grad().div_(moved(grad_scale, grad_scale.options().device(parameter.device())));
    });
  }
  step();
}

template <typename Base>
void Fused<Base>::save(::torch::serialize::OutputArchive& archive) const {
  correct_counts<typename Traits<Base>::State>(this->state());
  ::torch::optim::serialize<typename Traits<Base>::State, typename Traits<Base>::Options>(archive, *this);
}

template <typename Base>
void Fused<Base>::load(::torch::serialize::InputArchive& archive) {
  c10::IValue version;
  if (!archive.try_read("pytorch_version", version)) return Base::load(archive);  // a file of before 1.5
  ::torch::optim::serialize<StateOf<Base>, typename Traits<Base>::Options>(archive, *this);
}

template class Fused<::torch::optim::AdamW>;
template class Fused<::torch::optim::Adam>;
template class Fused<::torch::optim::SGD>;

}  // namespace lockstep::libtorch
