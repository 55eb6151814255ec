// SPDX-License-Identifier: Apache-2.0
// Optimizers: their base, SGD and AdamW; and clipping of gradients by their norm.
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

namespace lockstep::optim {

// Parameters and their weight decay. The optimizer ignores its own options' weight decay when it is given groups, so a
// group that sets none has 0.
struct ParameterGroup {
  std::vector<Tensor> parameters = {};
  double weight_decay = 0;  // 0 or more
};

// A tensor of an optimizer's state, for snapshots, by PyTorch's name: "exp_avg" of parameters()[3]. As large as the
// parameter, or flat and as large as this rank's share of it, and on its device, but for counts (i64 [1]), which stay
// on the host.
struct NamedState {
  std::string name;
  std::size_t parameter = 0;
  Tensor tensor;
};

// Steps from the parameters' gradients; a parameter without one is left alone. Works in place on the parameters'
// memory. Thread: one. The constructors throw InvalidArgument for parameters that are undefined, twice there, or don't
// require a gradient, and for settings that are out of their range.
//
// Over the parameters of a DistributedDataParallel with DdpOptions::shard it has the state of this rank's shares alone,
// and step() is collective: it throws the group's errors, sticky. InvalidArgument from the constructor if another
// optimizer has parameters of that DistributedDataParallel, or only some of `parameters` are its own.
class LOCKSTEP_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update, which logs the learning rate as "lr" (metrics/metrics.h). Gradients are read, not changed.
  // InvalidArgument, with parameters, state and steps() as they were, if a parameter or its gradient is on another
  // device than the state; with shards also for a second step behind one backward, in the middle of micro-batches, and
  // if the DistributedDataParallel was made behind this, or has ended.
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
  // Updates parameter `index`, whose gradient is there and was checked; with shards flat views of this rank's share of
  // both, perhaps of 0 elements, so that the update must be element by element. Throws nothing: half a step can't be
  // taken back.
  virtual void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) = 0;
  // One tensor of zeros per parameter, as large as what update() gets.
  std::vector<Tensor> zeros_like_parameters();

 private:
  void check(std::size_t index) const;
  void require_own_shards() const;
  // `whole`, a parameter or its gradient, or this rank's share of it.
  Tensor own_part(std::size_t index, const Tensor& whole) const;
  void update_own_part(std::size_t index);

  std::vector<Tensor> parameters_;
  std::unordered_map<const void*, std::size_t> index_;  // by Tensor::id
  ShardedUpdate* shards_ = nullptr;                     // of all parameters
  std::vector<double> weight_decay_;
  std::vector<DeviceId> devices_;  // the parameters', when this was made
  double learning_rate_;
  std::int64_t steps_ = 0;
  std::shared_ptr<trace::HeldMemory> held_;  // by the state
};

// Stochastic gradient descent, with torch.optim.SGD's momentum (without dampening).

struct SgdOptions {
  double lr = 1e-3;         // 0 or more, finite; of the first steps: set_learning_rate() changes it
  double momentum = 0;      // [0, 1)
  double weight_decay = 0;  // 0 or more
  bool nesterov = false;    // needs a momentum
};

// v = momentum v + (g + weight_decay w), from zeros; w -= lr v, or with nesterov lr (g + weight_decay w + momentum v).
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
  double lr = 1e-3;            // 0 or more, finite; of the first steps: set_learning_rate() changes it
  double beta1 = 0.9;          // [0, 1)
  double beta2 = 0.999;        // [0, 1)
  double epsilon = 1e-8;       // above 0
  double weight_decay = 1e-2;  // 0 or more
};

// As torch.optim.AdamW: w -= lr weight_decay w, then w -= lr m^ / (sqrt(v^) + epsilon), m^ and v^ bias-corrected by the
// steps that this parameter took: one that had no gradient at first, frozen and thawed later, begins as a new one does.
class LOCKSTEP_API AdamW final : public Optimizer {
 public:
  explicit AdamW(std::vector<Tensor> parameters, const AdamWOptions& options = {});
  // Groups bring their own weight decay; the option's is not used.
  explicit AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options = {});
  std::string name() const override { return "AdamW"; }
  std::vector<std::pair<std::string, double>> settings() const override;
  std::vector<NamedState> state() const override;

 private:
  void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) override;

  AdamWOptions options_;
  std::vector<Tensor> steps_taken_;  // by each parameter: i64 [1], on the host
  std::vector<Tensor> moment1_;
  std::vector<Tensor> moment2_;
};

// Clipping by the global norm.

// A norm. On a device it is there once somebody asks, who waits for the device's stream then.
class LOCKSTEP_API GradNorm {
 public:
  explicit GradNorm(Tensor norm) : norm_(std::move(norm)) {}
  double value() const;
  // NOLINTNEXTLINE(google-explicit-constructor): it is a number
  operator double() const { return value(); }

 private:
  Tensor norm_;  // one float64
};

// The 2-norm over all gradients that are there, taken as one vector, in double. On the CPU each parameter's sum of
// squares is exact and rounded once, so that equal gradients give equal bits on every rank, in shares
// (DdpOptions::shard) too. Collective for gradients in shares, and throws the group's errors then. InvalidArgument for
// parameters on several devices, for gradients in shares beside others, and for those that a step has used already.
LOCKSTEP_API GradNorm grad_norm(std::span<const Tensor> parameters);

// Scales all gradients by max_norm / norm if the norm is above max_norm. Returns the norm before; on the CPU it is
// logged as "grad_norm" (metrics/metrics.h).
// Error, with nothing changed, if the norm is not finite; it names the first parameter's position. On a device the
// gradients become 0 then, and the next call that waits for the device throws. InvalidArgument if max_norm is not above
// 0, and as grad_norm.
LOCKSTEP_API GradNorm clip_grad_norm(std::span<const Tensor> parameters, double max_norm);

}  // namespace lockstep::optim
