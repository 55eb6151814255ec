// SPDX-License-Identifier: Apache-2.0
// Weights and gradients of the engine's own modules, to compare.
#pragma once

#include <string>

#include "lockstep/nn/module.h"
#include "runtime/base/hash.h"
#include "tests/multirank/values.h"

namespace lockstep::testing {

inline Values weights_of(const nn::Module& model) {
  Values values;
  for (const auto& [name, tensor] : model.named_parameters()) values[name] = tensor.to_vector();
  return values;
}

inline Values gradients_of(const nn::Module& model) {
  Values values;
  for (const auto& [name, tensor] : model.named_parameters()) values[name] = tensor.grad().to_vector();
  return values;
}

// Of the bits of all weights.
inline std::uint64_t hash_of(const nn::Module& model) {
  std::uint64_t hash = 0;
  for (const Tensor& parameter : model.parameters()) {
    const Tensor here = parameter.to(DeviceId{});
    hash = hash64(here.data<float>(), here.view().bytes(), hash);
  }
  return hash;
}

inline void expect_close(const Values& seen, const Values& wanted, const std::string& what) {
  SCOPED_TRACE(what);
  expect_near(seen, wanted);
}

}  // namespace lockstep::testing
