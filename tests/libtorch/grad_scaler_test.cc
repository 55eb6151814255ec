// SPDX-License-Identifier: Apache-2.0
// Loss scaling, against torch.cuda.amp.GradScaler's rules.
#include "lockstep/libtorch/grad_scaler.h"

#include <limits>

#include "tests/libtorch/common.h"

namespace lockstep::testing::grad_scaler_test {
namespace {

using libtorch::GradScaler;
using libtorch::GradScalerOptions;

constexpr double kInf = std::numeric_limits<double>::infinity();

// Whether a step was left out.
bool is_left_out(const at::Tensor& found_inf) { return found_inf.item<float>() != 0; }

// One parameter, and an optimizer that takes its gradient away from it.
struct Model {
  explicit Model(const at::Tensor& start) : parameter(start.clone().requires_grad_()), sgd({parameter}, 1.0) {}
  // The parameter gets `gradient`, scaled.
  void backward(const GradScaler& scaler, const at::Tensor& gradient) {
    sgd.zero_grad();
    scaler.scale((parameter * gradient).sum()).backward();
  }
  at::Tensor parameter;
  ::torch::optim::SGD sgd;
};

TEST(GradScaler, StepsOnUnscaledGradients) {
  GradScaler scaler;
  EXPECT_EQ(scaler.get_scale(), 65536);
  Model model(at::zeros({3}));
  const at::Tensor gradient = at::tensor({1.0f, -2.0f, 0.5f});
  model.backward(scaler, gradient);
  EXPECT_TRUE(at::equal(model.parameter.grad(), gradient * 65536));
  scaler.unscale_(model.sgd);
  EXPECT_TRUE(at::equal(model.parameter.grad(), gradient)) << "to clip";
  EXPECT_FALSE(is_left_out(scaler.step(model.sgd)));
  scaler.update();
  EXPECT_TRUE(at::equal(model.parameter, -gradient));
  model.backward(scaler, gradient);
  EXPECT_FALSE(is_left_out(scaler.step(model.sgd))) << "without unscale_";
  EXPECT_TRUE(at::equal(model.parameter, -2 * gradient));
}

TEST(GradScaler, LeavesOutStepsWithAnInfOrNaNAndBacksOff) {
  GradScaler scaler({.init_scale = 8});
  double scale = 8;
  for (const double bad : {kInf, -kInf, std::nan("")}) {
    Model model(at::ones({2}));
    model.backward(scaler, at::tensor({1.0, bad}, at::kFloat));
    EXPECT_TRUE(is_left_out(scaler.step(model.sgd)));
    EXPECT_TRUE(at::equal(model.parameter, at::ones({2})));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), scale /= 2);
  }
}

TEST(GradScaler, GrowsAfterItsIntervalOfStepsWithoutAnInf) {
  GradScaler scaler({.init_scale = 4, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 2});
  Model model(at::ones({1}));
  const auto step = [&](double gradient) {
    model.backward(scaler, at::full({1}, gradient));
    scaler.step(model.sgd);
    scaler.update();
    return scaler.get_scale();
  };
  EXPECT_EQ(step(1), 4);
  EXPECT_EQ(step(1), 12);
  EXPECT_EQ(step(1), 12);
  EXPECT_EQ(step(kInf), 3) << "and the count begins anew";
  EXPECT_EQ(step(1), 3);
  EXPECT_EQ(step(1), 9);
  GradScaler large({.init_scale = 0x1p127, .growth_interval = 1});
  model.backward(large, at::zeros({1}));
  large.step(model.sgd);
  large.update();
  EXPECT_EQ(large.get_scale(), 0x1p127) << "no further than float32 goes";
}

TEST(GradScaler, AnInfOfOneOptimizerBacksOffForAllAndTheOtherSteps) {
  GradScaler scaler({.init_scale = 2});
  Model one(at::ones({1})), other(at::ones({1}));
  one.backward(scaler, at::full({1}, kInf));
  other.backward(scaler, at::ones({1}));
  EXPECT_TRUE(is_left_out(scaler.step(one.sgd)));
  EXPECT_FALSE(is_left_out(scaler.step(other.sgd)));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_EQ(other.parameter.item<float>(), 0);
}

TEST(GradScaler, ScalesSixteenBitLossesInFloat32) {
  const GradScaler scaler;
  const at::Tensor scaled = scaler.scale(at::full({}, 2.0, at::kHalf));
  EXPECT_EQ(scaled.scalar_type(), at::kFloat);
  EXPECT_EQ(scaled.item<double>(), 131072) << "more than float16 holds";
  EXPECT_EQ(scaler.scale(at::ones({}, at::kDouble)).scalar_type(), at::kDouble);
}

TEST(GradScaler, DisabledIsAsIfItWereNotThere) {
  GradScaler scaler({.enabled = false});
  Model model(at::zeros({1}));
  model.backward(scaler, at::full({1}, kInf));
  scaler.unscale_(model.sgd);
  EXPECT_FALSE(is_left_out(scaler.step(model.sgd)));
  scaler.update();
  EXPECT_EQ(model.parameter.item<double>(), -kInf);
  EXPECT_EQ(scaler.get_scale(), 1);
}

TEST(GradScaler, CallsInAWrongOrderAndOptionsOutOfRangeAreRefused) {
  GradScaler scaler;
  Model model(at::ones({1}));
  const auto says = [](const std::function<void()>& call, const std::string& words) {
    expect_text(outcome_of(call), {"InvalidArgument", "GradScaler", words});
  };
  says([&] { scaler.update(); }, "without a step()");
  says([&] { scaler.step(model.sgd); }, "has a gradient");
  model.backward(scaler, at::ones({1}));
  scaler.unscale_(model.sgd);
  says([&] { scaler.unscale_(model.sgd); }, "has been called for");
  scaler.step(model.sgd);
  says([&] { scaler.step(model.sgd); }, "since the last update()");
  says([&] { scaler.unscale_(model.sgd); }, "comes after step()");
  says([&] { scaler.update(kInf); }, "new_scale is inf");
  says([] { GradScaler({.init_scale = 0}); }, "init_scale is 0");
  says([] { GradScaler({.growth_factor = 1}); }, "growth_factor is 1");
  says([] { GradScaler({.backoff_factor = 1}); }, "backoff_factor is 1");
  says([] { GradScaler({.growth_interval = 0}); }, "growth_interval is 0");
  Model mixed(at::ones({2}));
  GradScaler fresh;
  mixed.backward(fresh, at::ones({2}));
  const at::Tensor half = at::ones({1}, at::kHalf).requires_grad_();
  half.mutable_grad() = at::ones({1}, at::kHalf);
  ::torch::optim::SGD both({mixed.parameter, half}, 1.0);
  says([&] { fresh.unscale_(both); }, "float16");
  EXPECT_TRUE(at::equal(mixed.parameter.grad(), at::full({2}, 65536.0))) << "nothing was changed";
}

TEST(GradScaler, GoesOnFromAnArchive) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 2});
  Model model(at::ones({1}));
  const auto step = [&](GradScaler& one) {
    model.backward(one, at::ones({1}));
    one.step(model.sgd);
    one.update();
  };
  step(scaler);
  GradScaler other({.growth_interval = 2});
  load_archive(other, archive_of(scaler));
  EXPECT_EQ(other.get_scale(), 4);
  step(other);
  EXPECT_EQ(other.get_scale(), 8) << "the second step of two";
}

}  // namespace
}  // namespace lockstep::testing::grad_scaler_test
