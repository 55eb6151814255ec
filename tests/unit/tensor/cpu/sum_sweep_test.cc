// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "runtime/tensor/cpu/cpu_kernels.h"
#include "tests/unit/tensor/cpu/sweep.h"

// Plain sums, tables, and a step of each optimizer, against the same in double.
namespace lockstep::sum_sweep_test {
namespace {

using testing::in_double;
using testing::kInfinity;
using testing::kNan;
using testing::kSizes;
using testing::Range;
using testing::ranges;
using testing::values_in;
using testing::Wanted;
using testing::Worst;
using Floats = std::vector<float>;

Kernels& k = cpu_kernels();

template <typename F>
Wanted sum_of(std::int64_t count, const F& term) {
  Wanted result{0, 0};
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = term(static_cast<std::size_t>(i));
    result.value += value;
    result.terms += std::abs(value);
  }
  return result;
}

TEST(SumSweep, SumsEqualDouble) {
  Worst sums("sum"), squares("sum_squares"), losses("mse");
  for (const Range& range : ranges()) {
    for (const std::int64_t n : kSizes) {
      const Floats a = values_in(range, n, 1), b = values_in(range, n, 2);
      float got = 0.25f;
      k.sum({&got, false}, a.data(), -0.5f, n);
      // Summed in double, so also a sum that cancels has all digits.
      Wanted wanted = sum_of(n, [&](std::size_t i) { return -0.5 * in_double(a[i]); });
      sums.add(got, {wanted.value, wanted.terms * 0x1p-24}, range.offset, range.scale, n);
      double total = -1;
      k.sum_squares(&total, a.data(), n);
      wanted = sum_of(n, [&](std::size_t i) { return in_double(a[i]) * in_double(a[i]); });
      EXPECT_NEAR(total, wanted.value, 1e-14 * wanted.value);
      k.mse(&got, a.data(), b.data(), n);
      wanted = sum_of(n, [&](std::size_t i) { return std::pow(in_double(a[i]) - in_double(b[i]), 2); });
      losses.add(got, {n == 0 ? 0 : wanted.value / static_cast<double>(n)}, range.offset, range.scale, n);
    }
  }
  const Floats nan(33, kNan);
  double total = 0;
  k.sum_squares(&total, nan.data(), 33);
  EXPECT_TRUE(std::isnan(total));
  sums.expect_at_most(0.5001);
  losses.expect_at_most(0.5001);
}

double sum_in_sixteen_parts(const std::vector<double>& values) {
  std::array<double, 16> parts{};
  for (std::size_t i = 0; i < values.size(); ++i) parts[i % 16] += values[i];
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t part = 0; part < half; ++part) parts[part] += parts[part + half];
  }
  return parts[0];
}

// Their bits can't depend on how wide a processor's vectors are.
TEST(SumSweep, RowsAreSummedInSixteenPartsOnEveryProcessor) {
  for (const std::int64_t n : {0, 1, 15, 16, 17, 31, 33, 1000, 4099}) {
    const Floats a = values_in({0, 1}, n, 1);
    std::vector<double> values;
    for (const float value : a) values.push_back(in_double(value));
    float sum = -1;
    k.sum({&sum, false}, a.data(), 1.0f, n);
    EXPECT_EQ(sum, static_cast<float>(sum_in_sixteen_parts(values))) << n;
  }
}

// 20,000 rows: a chain of floats would be off by thousands of ulps.
TEST(SumSweep, ColumnSumsEqualDoubleOverManyRows) {
  Worst worst("sum_rows");
  for (const std::int64_t rows : {0, 1, 31, 32, 33, 20000}) {
    for (const std::int64_t columns : {1, 3, 64, 67}) {
      const Floats a = values_in({1, 0.5f}, rows * columns, 1);
      Floats out(static_cast<std::size_t>(columns), 3);
      k.sum_rows({out.data(), false}, a.data(), rows, columns);
      for (std::size_t c = 0; c < out.size(); ++c) {
        const auto width = static_cast<std::size_t>(columns);
        worst.add(out[c], sum_of(rows, [&](std::size_t r) { return in_double(a[r * width + c]); }), rows, columns);
      }
    }
  }
  worst.expect_at_most(4);
}

TEST(SumSweep, AnEmbeddingsGradientEqualsDouble) {
  Worst worst("embedding_backward");
  for (const Range& range : ranges()) {
    const std::int64_t columns = 17, count = 60;
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < count; ++i) indices.push_back(i * i % 5);
    const Floats dy = values_in(range, count * columns, 1);
    Floats table(5 * 17, kNan);
    k.embedding_backward({table.data(), false}, dy.data(), indices.data(), count, 5, columns);
    for (std::size_t at = 0; at < table.size(); ++at) {
      worst.add(table[at],
                sum_of(count,
                       [&](std::size_t i) {
                         return indices[i] == static_cast<std::int64_t>(at / 17) ? in_double(dy[i * 17 + at % 17])
                                                                                 : 0.0;
                       }),
                range.offset, range.scale);
    }
  }
  worst.expect_at_most(8);
}

struct Weights {
  Floats weight, gradient, first, second;
};

Weights weights_of(std::int64_t count) {
  return {values_in({0, 1}, count, 1), values_in({0, 1}, count, 2), values_in({0, 1}, count, 3),
          values_in({1, 1}, count, 4)};
}

// Never part of a fused multiply-add.
float rounded(float value) {
  const volatile float result = value;
  return result;
}

// Replicas take each step apart, perhaps on processors of which only one fuses.
TEST(OptimizerSweep, AStepHasTheBitsOfSeparateProductsAndSums) {
  const AdamWStep step{.learning_rate = 0.01,
                       .beta1 = 0.9,
                       .beta2 = 0.999,
                       .epsilon = 1e-8,
                       .weight_decay = 0.1,
                       .correction1 = 0.3,
                       .correction2 = 0.003};
  const auto rate = static_cast<float>(0.01 / 0.3), root = static_cast<float>(1 / std::sqrt(0.003));
  for (const std::int64_t n : {0, 1, 7, 33, 1000}) {
    const Weights before = weights_of(n);
    Weights w = before;
    k.adamw(w.weight.data(), w.gradient.data(), w.first.data(), w.second.data(), n, step);
    for (std::size_t i = 0; i < w.weight.size(); ++i) {
      const float g = before.gradient[i];
      const float m = rounded(0.9f * before.first[i]) + rounded(static_cast<float>(1 - 0.9) * g);
      const float v = rounded(0.999f * before.second[i]) + rounded(rounded(static_cast<float>(1 - 0.999) * g) * g);
      const float move = rounded(rate * m) / rounded(rounded(rounded(std::sqrt(v)) * root) + 1e-8f);
      ASSERT_EQ(w.first[i], m) << i;
      ASSERT_EQ(w.second[i], v) << i;
      ASSERT_EQ(w.weight[i], rounded(static_cast<float>(1 - 0.01 * 0.1) * before.weight[i]) - rounded(move)) << i;
    }
    for (const auto& [momentum, nesterov] : {std::pair(0.0f, false), {0.9f, false}, {0.9f, true}}) {
      w = before;
      k.sgd(
          w.weight.data(), w.gradient.data(), w.first.data(), n,
          {.learning_rate = 0.1, .momentum = static_cast<double>(momentum), .weight_decay = 0.3, .nesterov = nesterov});
      for (std::size_t i = 0; i < w.weight.size(); ++i) {
        const float g = before.gradient[i] + rounded(0.3f * before.weight[i]);
        const float v = momentum == 0 ? g : rounded(momentum * before.first[i]) + rounded(g);
        const float move = rounded(0.1f * (nesterov ? rounded(g + rounded(momentum * rounded(v))) : rounded(v)));
        ASSERT_EQ(w.first[i], momentum == 0 ? before.first[i] : v) << i;
        ASSERT_EQ(w.weight[i], before.weight[i] - move) << i;
      }
    }
  }
}

// PyTorch 1.13's torch.optim does the same: a NaN gradient leaves NaN weights, an infinite one of AdamW too.
TEST(OptimizerSweep, OptimizersHideNoNan) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    Weights w = weights_of(17);
    w.gradient[16] = bad;
    k.adamw(w.weight.data(), w.gradient.data(), w.first.data(), w.second.data(), 17,
            {.learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8});
    EXPECT_TRUE(std::isnan(w.weight[16])) << bad;
    for (const bool nesterov : {false, true}) {
      w = weights_of(17);
      w.gradient[16] = bad;
      k.sgd(w.weight.data(), w.gradient.data(), w.first.data(), 17,
            {.learning_rate = 0.01, .momentum = 0.9, .nesterov = nesterov});
      EXPECT_EQ(std::isnan(w.weight[16]), std::isnan(bad));
      EXPECT_FALSE(std::isfinite(w.weight[16]));
    }
  }
}

}  // namespace
}  // namespace lockstep::sum_sweep_test
