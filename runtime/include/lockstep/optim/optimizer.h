// SPDX-License-Identifier: Apache-2.0
// The base of all optimizers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::optim {

// Parameters with settings of their own; what is not set is the optimizer's.
struct ParameterGroup {
  std::vector<Tensor> parameters = {};
  double weight_decay = 0;  // 0 or more
};

// A tensor of an optimizer's state, for snapshots, by PyTorch's name: "exp_avg" of parameters()[3]. As large as the
// parameter and on its device, but for counts (i64 [1]), which stay on the host.
struct NamedState {
  std::string name;
  std::size_t parameter = 0;
  Tensor tensor;
};

// Steps from the parameters' gradients; a parameter without one is left alone. Works in place on the parameters'
// memory. Thread: one. The constructors throw InvalidArgument for parameters that are undefined, twice there, or don't
// require a gradient, and for settings that are out of their range.
class LOCKSTEP_API Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update, which logs the learning rate as "lr" (metrics/log_scalar.h). Gradients are read, not changed.
  // InvalidArgument, with parameters, state and steps() as they were, if a parameter or its gradient is on another
  // device than the state.
  void step();
  // Drops the gradients (Tensor::clear_grad): memory stays, the next backward overwrites.
  void zero_grad() const;

  double learning_rate() const { return learning_rate_; }
  // From the next step on. InvalidArgument if it is negative or not finite.
  void set_learning_rate(double rate);
  // Calls of step() so far; each parameter's own count, where one matters, is in state(). Setting it is for snapshots.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  const std::vector<Tensor>& parameters() const { return parameters_; }
  double weight_decay(std::size_t index) const { return weight_decay_[index]; }
  // "AdamW".
  virtual std::string name() const = 0;
  // The constructor's arguments beside the learning rate and weight decays, by PyTorch's names, but for betas, which
  // come one by one.
  virtual std::vector<std::pair<std::string, double>> settings() const = 0;
  // The state's tensors, in a fixed order: a snapshot saves them and copies into them.
  virtual std::vector<NamedState> state() const = 0;

 protected:
  Optimizer(std::vector<ParameterGroup> groups, double learning_rate);
  // Updates parameter `index`, whose gradient is there and was checked. Throws nothing: half a step can't be taken
  // back.
  virtual void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) = 0;
  // One tensor of zeros per parameter.
  std::vector<Tensor> zeros_like_parameters() const;

 private:
  void check(std::size_t index, const Tensor& gradient) const;

  std::vector<Tensor> parameters_;
  std::vector<double> weight_decay_;
  std::vector<DeviceId> devices_;  // the parameters', when this was made
  double learning_rate_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep::optim
