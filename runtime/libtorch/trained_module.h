// SPDX-License-Identifier: Apache-2.0
// The module that a replica trains, as it was when it was wrapped: its tensors, hooks around the accumulators of those
// that are trained, and the refusals of a module that has changed since; with the group, the options and the Trainer,
// all that every part of a replica works with.
//
// Threads: one at a time; torch's engine calls the hooks on its own.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/libtorch/options.h"
#include "runtime/ddp/trainer.h"
#include "runtime/libtorch/micro_batch_buffers.h"
#include "runtime/libtorch/module_state.h"
#include "runtime/libtorch/node.h"

namespace lockstep::libtorch {

class SyncBatchNormImpl;

// Calls::finite: a gradient stays finite if it is multiplied by so much.
inline constexpr double kLargestFactor = 1e9;

// How often a tensor was written; 0 for an inference tensor, which does not count.
inline std::uint64_t writes_to(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint64_t>(tensor._version());
}

class TrainedModule {
 public:
  // A parameter that requires a gradient.
  struct Parameter {
    std::string name;
    at::Tensor tensor;
  };
  // What the hooks of parameter `index` call, on a thread of torch's engine.
  struct Calls {
    std::function<void(std::size_t index, bool has_gradient)> before;
    std::function<void(std::size_t index)> after;
    // Returns memory in which the whole gradient may be computed before it gets to the accumulator, or nothing.
    std::function<at::Tensor(std::size_t index)> place;
    // Tells that the values of `gradient`, which goes to the accumulator next, are finite. Empty if nobody looks.
    using Finite = std::function<void(std::size_t index, const at::Tensor& gradient)>;
    Finite finite;
  };

  // InvalidArgument for a module that can't be trained, or that another replica trains.
  TrainedModule(const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> given_group, const DdpOptions& given);

  const std::shared_ptr<ProcessGroup> group;
  const DdpOptions options;

  // Float32 for 16 bits on the CPU: a gradient is weighted, summed and divided there, and rounded once, into .grad.
  // NCCL sums in the parameters' dtype.
  DType reduced_as(const at::Tensor& parameter) const;
  bool is_training() const { return module_.is_training(); }
  // By dotted name, which is empty for the module itself.
  std::vector<std::pair<std::string, const SyncBatchNormImpl*>> sync_batch_norms() const;
  // The name of a SyncBatchNorm whose forward would be a collective now.
  std::optional<std::string> collective_norm() const;
  // In registration order, a shared one once.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // All tensors, and the buffers that are equal on all ranks.
  const std::vector<NamedTensor>& state() const { return state_; }
  std::vector<NamedTensor>& buffers() { return buffers_; }
  const std::vector<NamedTensor>& buffers() const { return buffers_; }
  // The numbers of the trained parameters, by accumulator.
  const std::unordered_map<const ::torch::autograd::Node*, int>& numbers() const { return numbers_; }

  // Puts each accumulator between the calls, which are made while `owner` lives: it has this object.
  void hook(const std::shared_ptr<void>& owner, Calls calls);
  void unhook() noexcept;
  // Whether a replica trains `parameter`.
  static bool is_trained(const at::Tensor& parameter);
  // In a backward: where the gradient for `accumulator` may be computed, or an undefined tensor if it must not: the
  // node is not a trained parameter's accumulator, others see its gradient, or the backward is not of all parameters.
  static at::Tensor gradient_place(::torch::autograd::Node* accumulator);
  // In a backward: if `is_finite`, tells the replica of `accumulator` that `gradient` is, so that it need not look.
  // Asks only if the replica would.
  static void tell_finite(::torch::autograd::Node* accumulator, const at::Tensor& gradient,
                          const std::function<bool()>& is_finite);
  // From now on gradients are accumulated in this thread's current stream. InvalidArgument, by the parameter's name, if
  // a graph holds its accumulator.
  void accumulate_here();

  // Refuse a parameter that was thawed, converted or moved; refuse_changed(): and a part or tensor that is new to the
  // module, which would not be averaged or broadcast. It walks over the module's names only if parts_of() changed.
  void refuse_thawed_or_converted() const;
  void refuse_changed();

  // The writes to the trained parameters; versions(): and to the frozen ones, which must stay equal too.
  std::uint64_t trained_versions() const;
  std::uint64_t versions() const;
  DivergenceCheck::Replica::State dense_state() const;

 private:
  struct PreHook;
  struct Hook;
  // An accumulator, and what is hooked to it.
  struct Hooked {
    NodePtr accumulator;
    std::uintptr_t hook = 0;                                       // after it
    const ::torch::autograd::FunctionPreHook* pre_hook = nullptr;  // before it; the accumulator owns it
  };
  std::vector<ParameterSpec> sort_parameters();
  void refuse_wrapped_twice() const;
  void hook(std::size_t index);
  static const PreHook* hook_of(::torch::autograd::Node* accumulator);
  // The hook that gets the gradient of the node that runs, as it is; else null.
  static const PreHook* direct_hook_of(::torch::autograd::Node* accumulator);
  static void unhook(const Hooked& hooked) noexcept;

  const ::torch::nn::Module& module_;
  std::vector<NamedTensor> state_, frozen_, buffers_;
  std::vector<Parameter> parameters_;
  std::vector<Hooked> hooked_;      // by trained parameter
  std::vector<const void*> parts_;  // parts_of() the module when it was last looked at
  std::unordered_map<const ::torch::autograd::Node*, int> numbers_;
  Calls calls_;
  std::weak_ptr<const Calls> live_calls_;  // shares the owner

 public:
  MicroBatchBuffers micro_batch_buffers;
  Trainer trainer;  // last, for it takes the specs of parameters and of the sums of buffers
};

}  // namespace lockstep::libtorch
