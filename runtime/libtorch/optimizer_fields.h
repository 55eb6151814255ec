// SPDX-License-Identifier: Apache-2.0
// The state that LibTorch's optimizers keep for a parameter, and the settings of a group, by PyTorch's names.
//
// Source: torch/csrc/api/include/torch/optim/*.h of 1.13 and 2.x, whose maps of states have other keys.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <sstream>
#include <string>
#include <type_traits>

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

}  // namespace lockstep::libtorch
