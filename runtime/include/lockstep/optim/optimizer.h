// SPDX-License-Identifier: Apache-2.0
// This header defines the optimizers SGD and AdamW, their base class Optimizer, and functions that clip gradients by
// their norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::trace {
class HeldMemory;
}

namespace lockstep {
class ShardedUpdate;
}

namespace lockstep::optim {

// ParameterGroup is a list of parameters that share one weight decay. An optimizer that is made from groups ignores the
// weight_decay in its options; a group that sets no weight decay has a weight decay of 0.
struct ParameterGroup {
  std::vector<Tensor> parameters = {};
  double weight_decay = 0;  // 0 or more
};

// Returns `parameters` in the two groups that are usual for AdamW, with and without weight decay. The first group has
// the parameters of two dimensions or more (matrices) and `weight_decay`; the second group has the other parameters
// (biases, gains) and no weight decay. A group may be empty.
LOCKSTEP_API std::vector<ParameterGroup> decay_groups(const std::vector<Tensor>& parameters, double weight_decay);

// NamedState is one tensor of an optimizer's state with PyTorch's name, such as "exp_avg" of parameters()[3]; snapshots
// save NamedStates. The tensor of a NamedState is on the parameter's device and has as many elements as the parameter.
// With Shard::optimizer (see DdpOptions::shard) the tensor is one-dimensional, and has as many elements as this rank's
// shard of the parameter. Counts (i64 [1]) stay on the host.
struct NamedState {
  std::string name;
  std::size_t parameter = 0;
  Tensor tensor;
};

// Optimizer is the base class of optimizers, which use gradients to update parameters in place. A step() does not
// change a parameter that has no gradient. An Optimizer belongs to one thread. The constructors throw InvalidArgument
// if a parameter is undefined, is listed twice or doesn't require a gradient, or if a setting is out of its range.
//
// With Shard::optimizer (see DdpOptions::shard) an optimizer for a DistributedDataParallel's parameters holds only the
// state of this rank's shard. With Shard::optimizer each step() is collective and throws the group's errors; after an
// error, later calls of step() throw the first error again. With Shard::optimizer the constructor throws
// InvalidArgument if another optimizer already has parameters of the DistributedDataParallel, or if only some of the
// optimizer's parameters belong to the DistributedDataParallel.
class LOCKSTEP_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient, and logs the learning rate as "lr" (metrics/metrics.h). The update
  // does not change gradients.
  //
  // Throws InvalidArgument if a parameter or its gradient is not on the device of the optimizer's state. With
  // Shard::optimizer, step() also throws InvalidArgument if step() is called twice after one backward, or between
  // micro-batches. With Shard::optimizer, step() also throws InvalidArgument if the DistributedDataParallel was made
  // after the optimizer, or has been destroyed. A step() that throws InvalidArgument leaves parameters, state and
  // steps() unchanged.
  void step();
  // Drops all gradients (Tensor::clear_grad). The gradients' memory stays allocated, and the next backward writes new
  // gradients into this memory.
  void zero_grad() const;

  double learning_rate() const { return learning_rate_; }
  // Sets the learning rate for the next step() and all later steps. Throws InvalidArgument if the rate is negative or
  // not finite.
  void set_learning_rate(double rate);
  // steps() returns how many times step() was called; snapshots restore the number with set_steps(). If an optimizer
  // counts the updates of each parameter, the counts are tensors in state().
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  const std::vector<Tensor>& parameters() const { return parameters_; }
  double weight_decay(std::size_t index) const { return weight_decay_[index]; }
  // Returns the optimizer's name: "AdamW".
  virtual std::string name() const = 0;
  // Returns the settings that the constructor was given, except the learning rate and the weight decays, under
  // PyTorch's names. PyTorch's setting `betas` is returned as two settings, "beta1" and "beta2".
  virtual std::vector<std::pair<std::string, double>> settings() const = 0;
  // Returns the tensors of the optimizer's state, in a fixed order. A snapshot saves the tensors of state(), and
  // restores the state by copying saved values into the tensors.
  virtual std::vector<NamedState> state() const = 0;

 protected:
  Optimizer(std::vector<ParameterGroup> groups, double learning_rate);
  // Updates parameter number `index`; step() has checked that the gradient exists and is on the device of the
  // optimizer's state. With Shard::optimizer, `parameter` and `gradient` are one-dimensional views of this rank's
  // shard, which may have 0 elements, so update() must update each element independently of the others. An update()
  // must not throw, because a step that has updated only some parameters can't be undone.
  virtual void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) = 0;
  // Returns one tensor of zeros for each parameter, with the shape of the argument `parameter` that update() gets.
  std::vector<Tensor> zeros_like_parameters();

 private:
  void check(std::size_t index) const;
  void require_own_shards() const;
  // Returns this rank's shard of `whole`, which is a parameter or a gradient; without Shard::optimizer,
  // returns `whole`.
  Tensor own_part(std::size_t index, const Tensor& whole) const;
  void update_own_part(std::size_t index);

  std::vector<Tensor> parameters_;
  std::unordered_map<const void*, std::size_t> index_;  // indices of parameters by Tensor::id
  ShardedUpdate* shards_ = nullptr;                     // the shards of all parameters
  std::vector<double> weight_decay_;
  std::vector<DeviceId> devices_;  // the parameters' devices when this object was made
  double learning_rate_;
  std::int64_t steps_ = 0;
  std::shared_ptr<trace::HeldMemory> held_;  // the state's memory
};

// SGD is stochastic gradient descent with the momentum of torch.optim.SGD, without dampening.

struct SgdOptions {
  double lr = 1e-3;         // initial learning rate, 0 or more, finite; see set_learning_rate()
  double momentum = 0;      // [0, 1)
  double weight_decay = 0;  // 0 or more
  bool nesterov = false;    // needs a momentum
};

// For a weight w with gradient g, SGD first computes v = momentum v + (g + weight_decay w), where v begins as 0, and
// then updates w -= lr v. With SgdOptions::nesterov SGD updates w -= lr (g + weight_decay w + momentum v) instead of w
// -= lr v.
class LOCKSTEP_API SGD final : public Optimizer {
 public:
  explicit SGD(std::vector<Tensor> parameters, const SgdOptions& options = {});
  explicit SGD(std::vector<ParameterGroup> groups, const SgdOptions& options = {});
  std::string name() const override { return "SGD"; }
  std::vector<std::pair<std::string, double>> settings() const override;
  std::vector<NamedState> state() const override;

 private:
  void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) override;

  SgdOptions options_;
  std::vector<Tensor> velocity_;  // empty without momentum
};

// AdamW: Adam with decoupled weight decay. Loshchilov & Hutter, arXiv:1711.05101.

struct AdamWOptions {
  double lr = 1e-3;            // initial learning rate, 0 or more, finite; see set_learning_rate()
  double beta1 = 0.9;          // [0, 1)
  double beta2 = 0.999;        // [0, 1)
  double epsilon = 1e-8;       // above 0
  double weight_decay = 1e-2;  // 0 or more
};

// AdamW updates a weight w as torch.optim.AdamW does: first w -= lr weight_decay w, then w -= lr m^ / (sqrt(v^) +
// epsilon), where m^ and v^ are the bias-corrected moments of the gradient. The bias corrections use the number of
// updates of the parameter itself, so a parameter whose first gradient comes late begins like a new parameter.
class LOCKSTEP_API AdamW final : public Optimizer {
 public:
  explicit AdamW(std::vector<Tensor> parameters, const AdamWOptions& options = {});
  // Makes an optimizer from groups, each of which has its own weight decay; options.weight_decay is not used.
  explicit AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options = {});
  std::string name() const override { return "AdamW"; }
  std::vector<std::pair<std::string, double>> settings() const override;
  std::vector<NamedState> state() const override;

 private:
  void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) override;

  AdamWOptions options_;
  std::vector<Tensor> steps_taken_;  // indexed by parameter: i64 [1], on the host
  std::vector<Tensor> moment1_;
  std::vector<Tensor> moment2_;
};

// Clipping by the global norm.

// GradNorm is a norm of gradients. If the norm is on a GPU, GradNorm::value() blocks the host until the work in the
// GPU's stream is done.
class LOCKSTEP_API GradNorm {
 public:
  explicit GradNorm(Tensor norm) : norm_(std::move(norm)) {}
  double value() const;
  // NOLINTNEXTLINE(google-explicit-constructor): it is a number
  operator double() const { return value(); }

 private:
  Tensor norm_;  // the norm as one float64
};

// Returns the 2-norm of the vector that consists of all gradients of `parameters`, computed in double. On the CPU the
// sum of the squares of each parameter's gradient is computed exactly and rounded once. If all ranks have equal
// gradients, grad_norm() thus returns equal bits on every rank, even if the gradients are sharded (DdpOptions::shard).
//
// With sharded gradients grad_norm() is collective and throws the group's errors. Throws InvalidArgument if the
// parameters are on several devices, if only some of the gradients are sharded, or if an optimizer's step has already
// used the sharded gradients.
LOCKSTEP_API GradNorm grad_norm(std::span<const Tensor> parameters);

// Scales all gradients by max_norm / norm if the norm is above max_norm. Returns the norm before the scaling; on the
// CPU this norm is logged as "grad_norm" (metrics/metrics.h).
//
// On the CPU, throws Error and changes nothing if the norm is not finite; the message names the index of the first
// parameter whose gradient is not finite. On a device, if the norm is not finite, clip_grad_norm() sets all gradients
// to 0, and the next call that waits for the device throws Error. Throws InvalidArgument if max_norm is not above 0,
// and in all cases in which grad_norm() throws InvalidArgument.
LOCKSTEP_API GradNorm clip_grad_norm(std::span<const Tensor> parameters, double max_norm);

}  // namespace lockstep::optim
