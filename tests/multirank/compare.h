// SPDX-License-Identifier: Apache-2.0
// How results of different numbers of ranks are compared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "runtime/base/hash.h"

namespace lockstep::testing {

using Values = std::map<std::string, std::vector<float>>;

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

// Per tensor: max |seen - wanted| <= 1e-5 max |wanted|.
inline void expect_close(const Values& seen, const Values& wanted, const std::string& what) {
  ASSERT_EQ(seen.size(), wanted.size());
  for (const auto& [name, values] : wanted) {
    const std::vector<float>& others = seen.at(name);
    ASSERT_EQ(others.size(), values.size());
    float largest = 0;
    float apart = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      const float distance = std::abs(values[i] - others[i]);
      apart = std::isnan(distance) ? INFINITY : std::max(apart, distance);
    }
    EXPECT_GT(largest, 0) << what << ": " << name << " is zero everywhere, which proves nothing";
    EXPECT_LE(apart, 1e-5f * largest) << what << ": " << name;
  }
}

}  // namespace lockstep::testing
