// SPDX-License-Identifier: Apache-2.0
// Optimizers: their base class, SGD and AdamW; and clipping of gradients by their norm.
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

// Parameters with their own weight decay. An optimizer that gets groups ignores the weight decay of its options, so a
// group that sets none has 0.
struct ParameterGroup {
  std::vector<Tensor> parameters = {};
  double weight_decay = 0;  // 0 or more
};

// The usual two groups of AdamW: `weight_decay` for parameters of two dimensions or more (matrices), none for the
// others (biases, gains). A group may be empty.
LOCKSTEP_API std::vector<ParameterGroup> decay_groups(const std::vector<Tensor>& parameters, double weight_decay);

// A tensor of an optimizer's state, for snapshots, under PyTorch's name: "exp_avg" of parameters()[3]. It is as large
// as the parameter, or flat and as large as this rank's shard of it, and on the parameter's device; counts (i64 [1])
// stay on the host.
struct NamedState {
  std::string name;
  std::size_t parameter = 0;
  Tensor tensor;
};

// Updates parameters by their gradients, in place; a parameter without a gradient stays as it is. Thread: one. The
// constructors throw InvalidArgument for parameters that are undefined, listed twice, or don't require a gradient, and
// for settings that are out of their range.
//
// With the parameters of a DistributedDataParallel that has DdpOptions::shard, the optimizer has only the state of this
// rank's shard, and step() is collective: it throws the group's errors, and later calls throw the same. The constructor
// throws InvalidArgument if another optimizer has parameters of that DistributedDataParallel, or if only some of
// `parameters` belong to it.
class LOCKSTEP_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Makes one update, and logs the learning rate as "lr" (metrics/metrics.h). It reads gradients and does not change
  // them. InvalidArgument, with parameters, state and steps() as they were,
  //
  // - if a parameter or its gradient is on another device than the state;
  // - with shards also for a second step after one backward, in the middle of micro-batches, and if the
  //   DistributedDataParallel was made after this object, or is destroyed.
  void step();
  // Drops the gradients (Tensor::clear_grad): their memory stays, and the next backward overwrites it.
  void zero_grad() const;

  double learning_rate() const { return learning_rate_; }
  // Sets the learning rate from the next step on. InvalidArgument if it is negative or not finite.
  void set_learning_rate(double rate);
  // The number of calls of step(). Each parameter's own count, if the optimizer needs one, is in state(). set_steps()
  // is for snapshots.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  const std::vector<Tensor>& parameters() const { return parameters_; }
  double weight_decay(std::size_t index) const { return weight_decay_[index]; }
  // The optimizer's name: "AdamW".
  virtual std::string name() const = 0;
  // The constructor's arguments except the learning rate and weight decays, under PyTorch's names; betas are separate.
  virtual std::vector<std::pair<std::string, double>> settings() const = 0;
  // The state's tensors, in a fixed order. A snapshot saves them and copies into them.
  virtual std::vector<NamedState> state() const = 0;

 protected:
  Optimizer(std::vector<ParameterGroup> groups, double learning_rate);
  // Updates parameter `index`, whose gradient exists and was checked. With shards, `parameter` and `gradient` are flat
  // views of this rank's shard of them, perhaps of 0 elements, so the update must be element by element. Throws
  // nothing, because half a step can't be undone.
  virtual void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) = 0;
  // One tensor of zeros per parameter, as large as what update() gets.
  std::vector<Tensor> zeros_like_parameters();

 private:
  void check(std::size_t index) const;
  void require_own_shards() const;
  // `whole`, a parameter or its gradient, or this rank's shard of it.
  Tensor own_part(std::size_t index, const Tensor& whole) const;
  void update_own_part(std::size_t index);

  std::vector<Tensor> parameters_;
  std::unordered_map<const void*, std::size_t> index_;  // by Tensor::id
  ShardedUpdate* shards_ = nullptr;                     // the shards of all parameters
  std::vector<double> weight_decay_;
  std::vector<DeviceId> devices_;  // the parameters' devices when this object was made
  double learning_rate_;
  std::int64_t steps_ = 0;
  std::shared_ptr<trace::HeldMemory> held_;  // the state's memory
};

// Stochastic gradient descent, with torch.optim.SGD's momentum (without dampening).

struct SgdOptions {
  double lr = 1e-3;         // 0 or more, finite; for the first steps: set_learning_rate() changes it
  double momentum = 0;      // [0, 1)
  double weight_decay = 0;  // 0 or more
  bool nesterov = false;    // needs a momentum
};

// Updates v = momentum v + (g + weight_decay w), from zeros; w -= lr v, or with nesterov lr (g + weight_decay w +
// momentum v).
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
  double lr = 1e-3;            // 0 or more, finite; for the first steps: set_learning_rate() changes it
  double beta1 = 0.9;          // [0, 1)
  double beta2 = 0.999;        // [0, 1)
  double epsilon = 1e-8;       // above 0
  double weight_decay = 1e-2;  // 0 or more
};

// Updates as torch.optim.AdamW does: w -= lr weight_decay w, then w -= lr m^ / (sqrt(v^) + epsilon). m^ and v^ are
// bias-corrected by the number of steps that this parameter took: a parameter that had no gradient at first begins as a
// new one does.
class LOCKSTEP_API AdamW final : public Optimizer {
 public:
  explicit AdamW(std::vector<Tensor> parameters, const AdamWOptions& options = {});
  // Groups have their own weight decay; the option's is not used.
  explicit AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options = {});
  std::string name() const override { return "AdamW"; }
  std::vector<std::pair<std::string, double>> settings() const override;
  std::vector<NamedState> state() const override;

 private:
  void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) override;

  AdamWOptions options_;
  std::vector<Tensor> steps_taken_;  // by parameter: i64 [1], on the host
  std::vector<Tensor> moment1_;
  std::vector<Tensor> moment2_;
};

// Clipping by the global norm.

// A norm. On a device value() waits for the device's stream.
class LOCKSTEP_API GradNorm {
 public:
  explicit GradNorm(Tensor norm) : norm_(std::move(norm)) {}
  double value() const;
  // NOLINTNEXTLINE(google-explicit-constructor): it is a number
  operator double() const { return value(); }

 private:
  Tensor norm_;  // one float64
};

// Computes the 2-norm over all gradients that exist, taken as one vector, in double. On the CPU each parameter's sum of
// squares is exact and rounded once, so equal gradients give equal bits on every rank, also with shards
// (DdpOptions::shard).
//
// With sharded gradients the call is collective and throws the group's errors. InvalidArgument for parameters on
// several devices, for sharded gradients together with others, and for sharded gradients that a step has used already.
LOCKSTEP_API GradNorm grad_norm(std::span<const Tensor> parameters);

// Scales all gradients by max_norm / norm if the norm is above max_norm. Returns the norm before; on the CPU it is
// logged as "grad_norm" (metrics/metrics.h).
//
// Throws Error, with nothing changed, if the norm is not finite; it names the first parameter's position. On a device
// the gradients then become 0, and the next call that waits for the device throws. InvalidArgument if max_norm is not
// above 0, and as grad_norm().
LOCKSTEP_API GradNorm clip_grad_norm(std::span<const Tensor> parameters, double max_norm);

}  // namespace lockstep::optim
