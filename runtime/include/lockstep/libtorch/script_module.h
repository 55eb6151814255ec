// SPDX-License-Identifier: Apache-2.0
// ScriptModule makes a torch::nn::Module from a torch::jit::Module that Python has exported, so that a program can
// fine-tune the module under DistributedDataParallel.
//
//   lockstep::libtorch::ScriptModule net(torch::jit::load("model.pt"));              // from torch.jit.script or trace
//   lockstep::libtorch::DistributedDataParallel ddp(net, group);
//   torch::optim::SGD optimizer(net.parameters(), 0.01);
//   ...
//   loss_of(ddp(batch.data).toTensor(), batch.target).backward();
//   ...
//   lockstep::on_rank0([&] { net.script().save("tuned.pt"); }, *group);
//
// The parameters and buffers of a ScriptModule are the script's own tensors, under the script's dotted names. Each
// value that a ScriptModule trains, broadcasts or loads is therefore also a value of script(). The calls train(),
// eval() and to() also act on the script.
//
// If forward returns a tensor, DistributedDataParallel sees the tensor; if forward returns a tuple, list, dict or
// struct, DistributedDataParallel does not see the tensors in the tuple, list, dict or struct. For a forward that
// returns a tuple, list, dict or struct, leave DdpOptions::weight_outputs off.
//
// Threads: one thread at a time uses a ScriptModule. Failure: forward() throws torch's own errors.
#pragma once

#include <torch/nn/module.h>
#include <torch/script.h>

#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::libtorch {

class LOCKSTEP_API ScriptModule : public ::torch::nn::Module {
 public:
  // Makes a module that shares the script's tensors.
  explicit ScriptModule(::torch::jit::Module script);

  // Runs the script's forward on `args`: tensors, or any other values that convert to IValue.
  template <typename... Args>
  c10::IValue forward(Args&&... args) {
    return script_.forward({c10::IValue(std::forward<Args>(args))...});
  }
  void train(bool on = true) override;

  ::torch::jit::Module& script() { return script_; }

 private:
  ::torch::jit::Module script_;
};

}  // namespace lockstep::libtorch
