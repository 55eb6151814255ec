// SPDX-License-Identifier: Apache-2.0
// ModuleRef is the module argument of a call: a module, a shared_ptr to a module, or a holder made by TORCH_MODULE.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <memory>

#include "lockstep/base/error.h"

namespace lockstep::libtorch {

// ModuleRef refers to the module that a caller passes as an argument. The module must outlive the ModuleRef.
class ModuleRef {
 public:
  // NOLINTBEGIN(google-explicit-constructor): a ModuleRef stands for the module in a call
  ModuleRef(const ::torch::nn::Module& module) : module_(&module) {}
  // Throws InvalidArgument if the pointer or the holder is empty.
  template <std::derived_from<::torch::nn::Module> Net>
  ModuleRef(const std::shared_ptr<Net>& module) : module_(module.get()) {
    if (module_ == nullptr) throw InvalidArgument("the pointer to the module is null; make the module first");
  }
  template <std::derived_from<::torch::nn::Module> Net>
  ModuleRef(const ::torch::nn::ModuleHolder<Net>& module) {
    if (module.is_empty()) throw InvalidArgument("the module's holder is empty; make the module first");
    module_ = module.get();
  }
  // NOLINTEND(google-explicit-constructor)

  const ::torch::nn::Module& get() const { return *module_; }

 private:
  const ::torch::nn::Module* module_ = nullptr;
};

}  // namespace lockstep::libtorch
