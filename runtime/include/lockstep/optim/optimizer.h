// SPDX-License-Identifier: Apache-2.0
// Defines the optimizers SGD and AdamW, their base class, and clipping of gradients by their norm.
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

// ParameterGroup is a list of parameters with their own weight decay. An optimizer that gets groups ignores the weight
// decay of its options, so a group that sets no weight decay has 0.
struct ParameterGroup {
  std::vector<Tensor> parameters = {};
  double weight_decay = 0;  // 0 or more
};

// Returns the usual two groups of AdamW: the parameters of two dimensions or more (matrices) with `weight_decay`, and
// the other parameters (biases, gains) without weight decay. A group may be empty.
LOCKSTEP_API std::vector<ParameterGroup> decay_groups(const std::vector<Tensor>& parameters, double weight_decay);

// NamedState is a tensor of an optimizer's state, for snapshots, under PyTorch's name: "exp_avg" of parameters()[3].
// The tensor is on the parameter's device, and as large as the parameter, or flat and as large as this rank's shard of
// the parameter. Counts (i64 [1]) stay on the host.
struct NamedState {
  std::string name;
  std::size_t parameter = 0;
  Tensor tensor;
};

// Optimizer is the base class of optimizers, which update parameters by their gradients, in place. A parameter without
// a gradient keeps its value. An Optimizer belongs to one thread. The constructors throw InvalidArgument for parameters
// that are undefined, listed twice, or don't require a gradient, and for settings that are out of their range.
//
// With the parameters of a DistributedDataParallel that has DdpOptions::shard, the optimizer has only the state of this
// rank's shard. step() is then collective and throws the group's errors; later calls throw the first error again. The
// constructor throws InvalidArgument if another optimizer has parameters of the DistributedDataParallel, or if only
// some of `parameters` belong to the DistributedDataParallel.
class LOCKSTEP_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Makes one update, and logs the learning rate as "lr" (metrics/metrics.h). step() does not change gradients.
  //
  // Throws InvalidArgument if a parameter or its gradient is on another device than the state. With shards, step() also
  // throws InvalidArgument for a second step after one backward, in the middle of micro-batches, and if the
  // DistributedDataParallel was made after this object, or is destroyed. A step() that throws InvalidArgument leaves
  // parameters, state and steps() unchanged.
  void step();
  // Drops the gradients (Tensor::clear_grad): the gradients' memory stays, and the next backward overwrites the memory.
  void zero_grad() const;

  double learning_rate() const { return learning_rate_; }
  // Sets the learning rate from the next step on. Throws InvalidArgument if the rate is negative or not finite.
  void set_learning_rate(double rate);
  // steps() returns the number of calls of step(); set_steps() is for snapshots. If the optimizer needs a count per
  // parameter, these counts are in state().
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  const std::vector<Tensor>& parameters() const { return parameters_; }
  double weight_decay(std::size_t index) const { return weight_decay_[index]; }
  // Returns the optimizer's name: "AdamW".
  virtual std::string name() const = 0;
  // Returns the constructor's arguments except the learning rate and weight decays, under PyTorch's names; betas are
  // separate settings.
  virtual std::vector<std::pair<std::string, double>> settings() const = 0;
  // Returns the state's tensors, in a fixed order. A snapshot saves these tensors, and restores the state by copying
  // into them.
  virtual std::vector<NamedState> state() const = 0;

 protected:
  Optimizer(std::vector<ParameterGroup> groups, double learning_rate);
  // Updates parameter `index`, whose gradient exists and was checked. With shards, `parameter` and `gradient` are flat
  // views of this rank's shard, perhaps of 0 elements, so the update must be element by element. The function must not
  // throw, because half a step can't be undone.
  virtual void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) = 0;
  // Returns one tensor of zeros per parameter, as large as the `parameter` that update() gets.
  std::vector<Tensor> zeros_like_parameters();

 private:
  void check(std::size_t index) const;
  void require_own_shards() const;
  // Returns `whole`, which is a parameter or a gradient, or, with shards, this rank's shard of `whole`.
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

// Stochastic gradient descent, with torch.optim.SGD's momentum (without dampening).

struct SgdOptions {
  double lr = 1e-3;         // initial learning rate, 0 or more, finite; see set_learning_rate()
  double momentum = 0;      // [0, 1)
  double weight_decay = 0;  // 0 or more
  bool nesterov = false;    // needs a momentum
};

// SGD updates v = momentum v + (g + weight_decay w), where v begins as 0, and then w -= lr v. With nesterov the last
// update is w -= lr (g + weight_decay w + momentum v).
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

// AdamW updates as torch.optim.AdamW does: w -= lr weight_decay w, then w -= lr m^ / (sqrt(v^) + epsilon). m^ and v^
// are bias-corrected by the parameter's own number of updates, so a parameter whose first gradient comes late begins as
// a new parameter does.
class LOCKSTEP_API AdamW final : public Optimizer {
 public:
  explicit AdamW(std::vector<Tensor> parameters, const AdamWOptions& options = {});
  // Makes an optimizer of groups with their own weight decay; options.weight_decay is not used.
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

// GradNorm is a norm of gradients. On a device value() waits for the device's stream.
class LOCKSTEP_API GradNorm {
 public:
  explicit GradNorm(Tensor norm) : norm_(std::move(norm)) {}
  double value() const;
  // NOLINTNEXTLINE(google-explicit-constructor): it is a number
  operator double() const { return value(); }

 private:
  Tensor norm_;  // the norm as one float64
};

// Returns the 2-norm of the vector of all existing gradients, computed in double. On the CPU each parameter's sum of
// squares is exact and rounded once, so equal gradients give equal bits on every rank, also with
// shards (DdpOptions::shard).
//
// With sharded gradients the call is collective and throws the group's errors. Throws InvalidArgument for parameters on
// several devices, for sharded gradients together with unsharded gradients, and for sharded gradients that a step has
// used already.
LOCKSTEP_API GradNorm grad_norm(std::span<const Tensor> parameters);

// Scales all gradients by max_norm / norm if the norm is above max_norm. Returns the norm before the scaling; on the
// CPU this norm is logged as "grad_norm" (metrics/metrics.h).
//
// If the norm is not finite, throws Error, which names the position of the first parameter concerned, and changes
// nothing. On a device the gradients become 0 instead, and the next call that waits for the device throws. Throws
// InvalidArgument if max_norm is not above 0, and as grad_norm() does.
LOCKSTEP_API GradNorm clip_grad_norm(std::span<const Tensor> parameters, double max_norm);

}  // namespace lockstep::optim
