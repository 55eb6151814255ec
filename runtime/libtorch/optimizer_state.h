// SPDX-License-Identifier: Apache-2.0
// The state that LibTorch's optimizers keep for a parameter, and the settings of a group, by PyTorch's names; and the
// state in a fused optimizer: that of torch's class, and the parts that torch's class lacks.
//
// Source: torch/csrc/api/include/torch/optim/*.h of 1.13 and 2.x, whose maps of states have other keys.
#pragma once

#include <ATen/Functions.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::libtorch {

// visit(name, field): `field` is an at::Tensor&, which may be undefined, or a std::int64_t&.
template <typename Visit>
void each_field(::torch::optim::SGDParamState& state, Visit visit) {
  visit("momentum_buffer", state.momentum_buffer());
}

template <typename State, typename Visit>
requires std::is_same_v<State, ::torch::optim::AdamParamState> || std::is_same_v<State, ::torch::optim::AdamWParamState>
void each_field(State& state, Visit visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
}

template <typename Visit>
void each_field(::torch::optim::RMSpropParamState& state, Visit visit) {
  visit("step", state.step());
  visit("square_avg", state.square_avg());
  visit("momentum_buffer", state.momentum_buffer());
  visit("grad_avg", state.grad_avg());
}

template <typename Visit>
void each_field(::torch::optim::AdagradParamState& state, Visit visit) {
  visit("step", state.step());
  visit("sum", state.sum());
}

// visit(name, setting): a double&, a bool&, or a std::tuple<double, double>&.
template <typename Visit>
void each_setting(::torch::optim::SGDOptions& options, Visit visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}

template <typename Options, typename Visit>
requires std::is_same_v<Options, ::torch::optim::AdamOptions> || std::is_same_v<Options, ::torch::optim::AdamWOptions>
void each_setting(Options& options, Visit visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}

template <typename Visit>
void each_setting(::torch::optim::RMSpropOptions& options, Visit visit) {
  visit("lr", options.lr());
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
}

template <typename Visit>
void each_setting(::torch::optim::AdagradOptions& options, Visit visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}

// The key of a parameter's state: its address, before 2.0 as the text that a stream makes of it.
template <typename States>
typename States::key_type state_key(const at::Tensor& parameter) {
  if constexpr (std::is_same_v<typename States::key_type, std::string>) {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  } else {
    return parameter.unsafeGetTensorImpl();
  }
}

template <typename State>
struct FusedState final : State {
  using TorchState = State;

  // A float32 copy of the parameter, of its shape and strides. Undefined unless the parameter has 16 bits.
  at::Tensor master;
  // The parameter's _version() when it was last the rounded master. nullopt after the state was read from a file.
  std::optional<std::uint32_t> rounded_version;
  // Adam's and AdamW's number of steps taken, a float32 scalar on the parameter's device.
  at::Tensor taken;
  // Whether the device may have left out a step that the host has counted.
  bool is_uncertain = false;

  void serialize(::torch::serialize::InputArchive& archive) override {
    State::serialize(archive);
    archive.try_read(kMaster, master, /*is_buffer=*/true);
  }
  void serialize(::torch::serialize::OutputArchive& archive) const override {
    State::serialize(archive);
    if (master.defined()) archive.write(kMaster, master, /*is_buffer=*/true);
  }
  std::unique_ptr<::torch::optim::OptimizerParamState> clone() const override {
    return std::make_unique<FusedState>(*this);
  }

  static constexpr const char* kMaster = "master";
};

template <typename State, typename Visit>
void each_field(FusedState<State>& state, Visit visit) {
  each_field(static_cast<State&>(state), visit);
  visit(FusedState<State>::kMaster, state.master);
}

// `any`: of a parameter. A state of torch's class (of a file of before 1.5, or of a step that was not fused) is
// converted.
template <typename State>
FusedState<State>& fused_state_in(std::unique_ptr<::torch::optim::OptimizerParamState>& any) {
  if (auto* const own = dynamic_cast<FusedState<State>*>(any.get())) return *own;
  auto own = std::make_unique<FusedState<State>>();
  if (any) static_cast<State&>(*own) = static_cast<const State&>(*any);
  FusedState<State>& result = *own;
  any = std::move(own);
  return result;
}

// Corrects the host's counts, which include steps that the device left out. The host waits once for the device if there
// may be such a step. `states`: an optimizer's.
template <typename State, typename States>
void correct_counts(States& states) {
  if constexpr (requires(State & state) { state.step(); }) {
    std::vector<FusedState<State>*> uncertain;
    std::vector<at::Tensor> taken;
    for (auto& [key, any] : states) {
      auto* const state = dynamic_cast<FusedState<State>*>(any.get());
      if (state == nullptr || !std::exchange(state->is_uncertain, false)) continue;
      uncertain.push_back(state);
      taken.push_back(state->taken.to(taken.empty() ? state->taken.device() : taken.front().device()));
    }
    if (taken.empty()) return;
    const at::Tensor counts = at::stack(taken).cpu();
    for (std::size_t i = 0; i < uncertain.size(); ++i) {
      uncertain[i]->step(static_cast<std::int64_t>(counts.data_ptr<float>()[i]));
    }
  }
}

}  // namespace lockstep::libtorch
