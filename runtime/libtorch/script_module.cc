// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/script_module.h"

#include <memory>
#include <utility>

namespace lockstep::libtorch {
namespace {

// The tensors that `script` itself holds, and its children's below a child each.
void mirror(const ::torch::jit::Module& script, ::torch::nn::Module& module) {
  for (const auto& parameter : script.named_parameters(/*recurse=*/false)) {
    module.register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  }
  for (const auto& buffer : script.named_buffers(/*recurse=*/false)) module.register_buffer(buffer.name, buffer.value);
  for (const auto& child : script.named_children()) {
    mirror(child.value, *module.register_module(child.name, std::make_shared<::torch::nn::Module>(child.name)));
  }
}

}  // namespace

ScriptModule::ScriptModule(::torch::jit::Module script) : Module("ScriptModule"), script_(std::move(script)) {
  mirror(script_, *this);
  Module::train(script_.is_training());
}

void ScriptModule::train(bool on) {
  Module::train(on);
  script_.train(on);
}

}  // namespace lockstep::libtorch
