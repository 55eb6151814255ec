// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedule.h"
#include "runtime/tensor/kernels.h"
#include "runtime/tensor/tensor_internals.h"
#include "runtime/trace/process_trace.h"
#include "tests/support/error_of.h"

namespace lockstep::optim::optim_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;

constexpr std::int64_t kCount = 37;  // not a multiple of a vector

Tensor parameter(float first) {
  const Tensor result = Tensor::empty({kCount});
  for (std::int64_t i = 0; i < kCount; ++i) result.data<float>()[i] = first + 0.1f * static_cast<float>(i);
  return result.set_requires_grad();
}

// A gradient that depends on element and step, set as backward would.
double slope(std::int64_t i, int step) { return std::sin(0.7 * static_cast<double>(i) + 1.3 * step); }
void set_gradient(const Tensor& p, int step) {
  const Tensor gradient = TensorInternals(p).grad_for_writing();
  for (std::int64_t i = 0; i < kCount; ++i) gradient.data<float>()[i] = static_cast<float>(slope(i, step));
}

TEST(AdamW, FollowsThePaperForFiftySteps) {
  const AdamWOptions options{.lr = 3e-3, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1};
  const Tensor p = parameter(-1);
  AdamW optimizer({p}, options);
  std::vector<double> w(kCount), m(kCount), v(kCount);
  for (std::int64_t i = 0; i < kCount; ++i) w[static_cast<std::size_t>(i)] = -1 + 0.1 * static_cast<double>(i);
  for (int step = 1; step <= 50; ++step) {
    const double rate = options.lr / step;
    optimizer.set_learning_rate(rate);
    set_gradient(p, step);
    optimizer.step();
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = slope(static_cast<std::int64_t>(i), step);
      m[i] = options.beta1 * m[i] + (1 - options.beta1) * g;
      v[i] = options.beta2 * v[i] + (1 - options.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(options.beta1, step)),
                   v_hat = v[i] / (1 - std::pow(options.beta2, step));
      w[i] -= rate * (m_hat / (std::sqrt(v_hat) + options.epsilon) + options.weight_decay * w[i]);
      ASSERT_NEAR(p.data<float>()[i], w[i], 2e-6) << "step " << step << ", element " << i;
    }
  }
}

// As torch.optim.AdamW, whose state counts each parameter's own steps.
TEST(AdamW, AParameterThatIsThawedBeginsAsANewOne) {
  const Tensor p = parameter(1), thawed = parameter(1), fresh = parameter(1);
  AdamW optimizer({p, thawed}, {.lr = 0.1});
  for (int step = 1; step <= 10; ++step) {
    set_gradient(p, step);
    optimizer.step();
  }
  AdamW other({fresh}, {.lr = 0.1});
  for (int step = 11; step <= 14; ++step) {
    for (const Tensor& each : {p, thawed, fresh}) set_gradient(each, step);
    // Frozen again for a step in between: its moments and its count stay.
    if (step == 13) {
      thawed.clear_grad();
      other.zero_grad();
    }
    optimizer.step();
    other.step();
    EXPECT_EQ(thawed.to_vector(), fresh.to_vector()) << step;
  }
  EXPECT_EQ(optimizer.steps(), 14);
}

TEST(AdamW, DecayIsDecoupledAndOfMatricesAlone) {
  const Tensor matrix = Tensor::ones({2, 2}).set_requires_grad(), bias = Tensor::ones({2}).set_requires_grad();
  const auto groups = decay_groups({bias, matrix}, 0.5);
  ASSERT_EQ(groups.size(), 2u);
  AdamW optimizer(groups, {.lr = 0.1});
  EXPECT_EQ(optimizer.weight_decay(0), 0.5);
  for (const Tensor& each : {matrix, bias}) TensorInternals(each).grad_for_writing().zero();
  optimizer.step();
  EXPECT_NEAR(matrix.data<float>()[0], 0.95f, 1e-6);
  EXPECT_EQ(bias.data<float>()[0], 1);
}

TEST(Sgd, FollowsItsFormulas) {
  for (const SgdOptions& options :
       {SgdOptions{.lr = 0.1}, SgdOptions{.lr = 0.1, .weight_decay = 0.3}, SgdOptions{.lr = 0.1, .momentum = 0.9},
        SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1},
        SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}}) {
    const Tensor p = parameter(-2);
    SGD optimizer({p}, options);
    std::vector<double> w(kCount), v(kCount);
    for (std::int64_t i = 0; i < kCount; ++i) w[static_cast<std::size_t>(i)] = -2 + 0.1 * static_cast<double>(i);
    for (int step = 1; step <= 20; ++step) {
      set_gradient(p, step);
      optimizer.step();
      for (std::size_t i = 0; i < w.size(); ++i) {
        const double g = slope(static_cast<std::int64_t>(i), step) + options.weight_decay * w[i];
        v[i] = options.momentum * v[i] + g;
        w[i] -= options.lr * (options.nesterov ? g + options.momentum * v[i] : v[i]);
        ASSERT_NEAR(p.data<float>()[i], w[i], 2e-5) << "step " << step << ", element " << i;
      }
    }
  }
}

TEST(Optimizer, BadArgumentsAreRefused) {
  const Tensor p = parameter(0);
  EXPECT_THROW(SGD({p, p}), InvalidArgument);
  EXPECT_THROW(SGD({Tensor()}), InvalidArgument);
  EXPECT_THROW(SGD({Tensor::zeros({1})}), InvalidArgument);
  EXPECT_THROW(SGD({p}, {.lr = -1}), InvalidArgument);
  EXPECT_THROW(SGD({p}, {.momentum = 1}), InvalidArgument);
  EXPECT_THROW(SGD({p}, {.nesterov = true}), InvalidArgument);
  EXPECT_THROW(SGD({p}, {.weight_decay = -1}), InvalidArgument);
  EXPECT_THROW(AdamW({p}, {.beta1 = 1}), InvalidArgument);
  EXPECT_THROW(AdamW({p}, {.epsilon = 0}), InvalidArgument);
  EXPECT_THROW(AdamW({p}).set_learning_rate(std::numeric_limits<double>::quiet_NaN()), InvalidArgument);
}

TEST(Schedule, RisesFallsAndStays) {
  const Schedule cosine{.peak = 1, .floor = 0.1, .warmup = 10, .total = 110};
  EXPECT_NEAR(cosine(0), 0.1, 1e-12);
  EXPECT_NEAR(cosine(9), 1, 1e-12);
  EXPECT_NEAR(cosine(10), 1, 1e-12);
  EXPECT_NEAR(cosine(60), 0.55, 1e-12);
  EXPECT_NEAR(cosine(110), 0.1, 1e-12);
  EXPECT_NEAR(cosine(1000000), 0.1, 1e-12);
  const Schedule linear{.peak = 1, .floor = 0, .warmup = 0, .total = 100, .decay = Decay::linear};
  EXPECT_NEAR(linear(0), 1, 1e-12);
  EXPECT_NEAR(linear(25), 0.75, 1e-12);
  EXPECT_NEAR(linear(100), 0, 1e-12);
  const Schedule flat{.peak = 2, .warmup = 4, .decay = Decay::none};
  EXPECT_NEAR(flat(1), 1, 1e-12);
  EXPECT_NEAR(flat(500), 2, 1e-12);
  EXPECT_NEAR(flat(-3), 0.5, 1e-12);
}

TEST(Schedule, ThatWouldTrainNothingIsRefused) {
  EXPECT_THROW(Schedule{.peak = 0.1}(0), InvalidArgument);
  const Schedule short_of_steps{.peak = 1, .warmup = 4, .total = 4};  // a trial run of it trains
  EXPECT_NEAR(short_of_steps(3), 1, 1e-12);
  EXPECT_THROW(short_of_steps(4), InvalidArgument);
}

TEST(Clip, ScalesByTheGlobalNormAndOnlyDownwards) {
  const Tensor a = Tensor::zeros({1}).set_requires_grad(), b = Tensor::zeros({2}).set_requires_grad();
  const Tensor none = Tensor::zeros({2}).set_requires_grad();
  const std::vector<Tensor> all{a, none, b};
  TensorInternals(a).bind_grad(Tensor::of({1}, {3}));
  TensorInternals(b).bind_grad(Tensor::of({2}, {0, 4}));
  EXPECT_DOUBLE_EQ(grad_norm(all), 5);
  EXPECT_DOUBLE_EQ(clip_grad_norm(all, 10), 5);
  EXPECT_EQ(a.grad().item(), 3);
  EXPECT_DOUBLE_EQ(clip_grad_norm(all, 1), 5);
  EXPECT_NEAR(a.grad().item(), 0.6f, 1e-6);
  EXPECT_NEAR(b.grad().to_vector()[1], 0.8f, 1e-6);
  EXPECT_THROW(clip_grad_norm(all, 0), InvalidArgument);
}

TEST(Clip, AGradientThatIsNotFiniteIsAnErrorAndNothingChanges) {
  const Tensor a = Tensor::zeros({1}).set_requires_grad(), b = Tensor::zeros({1}).set_requires_grad();
  TensorInternals(a).bind_grad(Tensor::of({1}, {3}));
  TensorInternals(b).bind_grad(Tensor::of({1}, {std::numeric_limits<float>::infinity()}));
  const std::vector<Tensor> both{a, b};
  expect_text(error_of<Error>([&] { clip_grad_norm(both, 1); }), {"number 1"});
  EXPECT_EQ(a.grad().item(), 3);
  EXPECT_EQ(grad_norm(both), std::numeric_limits<double>::infinity());
}

TEST(Scalars, AStepLogsItsLearningRateAndAClipItsNorm) {
  trace::open_trace({}, "");
  const Tensor a = Tensor::zeros({2}).set_requires_grad();
  TensorInternals(a).bind_grad(Tensor::of({2}, {3, 4}));
  SGD optimizer({a}, {.lr = 0.25});
  for (const std::int64_t step : {7, 8}) {
    trace::keep_steps_done(step, 0);
    clip_grad_norm(std::vector<Tensor>{a}, 5);
    optimizer.step();
    optimizer.set_learning_rate(0.125);
  }
  const auto scalars = trace::contents_of_trace()->scalars;
  ASSERT_EQ(scalars.size(), 2u);
  std::vector<std::pair<std::int64_t, double>> found;
  for (const auto& [name, points] : scalars) {
    for (const auto& point : points) found.emplace_back(point.step, point.value);
  }
  EXPECT_EQ(scalars[0].name, "grad_norm");
  EXPECT_EQ(scalars[1].name, "lr");
  EXPECT_EQ(found, (std::vector<std::pair<std::int64_t, double>>{{7, 5}, {8, 5}, {7, 0.25}, {8, 0.125}}));
}

}  // namespace
}  // namespace lockstep::optim::optim_test
