// SPDX-License-Identifier: Apache-2.0
// Holds an operation's gradients to finite differences.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "lockstep/autograd/graph.h"
#include "lockstep/autograd/ops.h"
#include "runtime/tensor/tensor_internals.h"

namespace lockstep::testing {

// Reproducible values in [-1, 1), away from 0 by `gap`.
inline Tensor random_tensor(const Shape& shape, std::uint64_t stream, float gap = 0) {
  Generator generator(7, stream);
  const Tensor result = Tensor::empty(shape);
  for (float& value : result.values<float>()) {
    value = 2 * generator.uniform() - 1;
    value += value < 0 ? -gap : gap;
  }
  return result;
}

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

namespace internal {

// The output against fixed weights, so that each of its elements counts: one number, summed in double.
inline double project(const Tensor& output, const Tensor& weights) {
  double total = 0;
  for (std::int64_t i = 0; i < output.count(); ++i) {
    total += static_cast<double>(output.data<float>()[i]) * static_cast<double>(weights.data<float>()[i]);
  }
  return total;
}

inline void compare(const std::vector<double>& wanted, const Tensor& gradient, double factor, std::size_t input,
                    const char* what) {
  double largest = 0;
  for (const double value : wanted) largest = std::max(largest, std::abs(value));
  const double tolerance = 1e-3 * largest + 1e-4;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(gradient.values<float>()[i], factor * wanted[i], factor * tolerance)
        << what << ", input " << input << ", element " << i;
  }
}

}  // namespace internal

// For every input and element: the gradient of f equals the five-point difference quotient. And the three ways in which
// a gradient may be written: over garbage, added to what is there, and (through a copy) added on its way to a leaf.
inline void expect_gradients(const Function& f, std::vector<Tensor> inputs) {
  constexpr float kStep = 2e-2f;
  Tensor weights;
  std::vector<std::vector<double>> wanted;
  {
    const NoGrad no_grad;
    weights = random_tensor(f(inputs).shape(), 99);
    for (const Tensor& input : inputs) {
      std::vector<double>& derivative = wanted.emplace_back();
      for (float& element : input.values<float>()) {
        const float before = element;
        const auto at = [&](float steps) {
          element = before + steps * kStep;
          return internal::project(f(inputs), weights);
        };
        const double slope = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * static_cast<double>(kStep));
        element = before;
        derivative.push_back(slope);
      }
    }
  }
  const auto loss_of = [&](const std::vector<Tensor>& arguments) { return sum(f(arguments) * weights); };

  for (const Tensor& input : inputs) {
    input.set_requires_grad();
    TensorInternals(input).bind_grad(Tensor::full(input.shape(), std::numeric_limits<float>::quiet_NaN()));
  }
  backward(loss_of(inputs), 1.0f, {.accumulate = false});
  for (std::size_t i = 0; i < inputs.size(); ++i) internal::compare(wanted[i], inputs[i].grad(), 1, i, "overwrites");
  backward(loss_of(inputs), 2.0f, {.accumulate = true});
  for (std::size_t i = 0; i < inputs.size(); ++i) internal::compare(wanted[i], inputs[i].grad(), 3, i, "accumulates");

  // Each input used twice, so that the second gradient meets the first on its way.
  std::vector<Tensor> copies;
  for (const Tensor& input : inputs) copies.push_back(scale(input, 1.0f));
  backward(loss_of(copies) + loss_of(copies), 1.0f, {.accumulate = false});
  for (std::size_t i = 0; i < inputs.size(); ++i) internal::compare(wanted[i], inputs[i].grad(), 2, i, "meets");

  // Only one input wants a gradient: the others' must be neither needed nor touched.
  for (std::size_t only = 0; only < inputs.size() && inputs.size() > 1; ++only) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i].set_requires_grad(i == only);
      TensorInternals(inputs[i]).unbind_grad();
    }
    backward(loss_of(inputs));
    for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(inputs[i].has_grad(), i == only);
    internal::compare(wanted[only], inputs[only].grad(), 1, only, "alone");
  }
}

}  // namespace lockstep::testing
