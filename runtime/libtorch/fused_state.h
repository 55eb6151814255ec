// SPDX-License-Identifier: Apache-2.0
// The state of a parameter in a fused optimizer: the state of torch's class, and the parts that torch's class lacks.
#pragma once

#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/libtorch/optimizer_fields.h"

namespace lockstep::libtorch {

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
