// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <bit>

#include "runtime/tensor/cpu/cpu_kernels.h"
#include "tests/unit/tensor/cpu/sweep.h"

// Every kernel whose elements do not depend on their neighbours. NaN and infinity are what PyTorch 1.13 gives on the
// CPU.
namespace lockstep::elementwise_sweep_test {
namespace {

using testing::kSizes;
using testing::kSpecial;
using testing::Range;
using testing::ranges;
using testing::values_in;
using testing::Wanted;
using testing::Worst;

Kernels& k = cpu_kernels();

struct Operation {
  const char* name;
  double ulps;  // PyTorch's error, or less
  std::function<void(Into out, const float* a, const float* b, std::int64_t count)> run;
  std::function<Wanted(double a, double b)> wanted;
  bool adds = true;                    // has an Into
  float largest = testing::kInfinity;  // of a
};

constexpr double kGelu = 1.5957691216057307;  // 2 sqrt(2 / pi)
double gelu_argument(double x) { return kGelu * (x + 0.044715 * x * x * x); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// The exponential of a rounded argument: below 0 its error is a share of the result.
double gelu_terms(double x) { return 1 + 0.75 * std::min(std::max(-gelu_argument(x), 0.0), 200.0); }

Operation function(const char* name, double ulps, void (*kernel)(float*, const float*, std::int64_t),
                   const std::function<Wanted(double)>& wanted) {
  return {name, ulps, [=](Into out, const float* a, const float*, std::int64_t n) { kernel(out.data, a, n); },
          [=](double a, double) { return wanted(a); }, false};
}

Operation derivative(const char* name, double ulps, void (*kernel)(Into, const float*, const float*, std::int64_t),
                     const std::function<Wanted(double, double)>& wanted, float largest = testing::kInfinity) {
  return {name,   ulps, [=](Into out, const float* a, const float* b, std::int64_t n) { kernel(out, a, b, n); },
          wanted, true, largest};
}

constexpr double kShare = 1.0 / 3;

std::vector<Operation> functions() {
  return {
      function("relu", 0, cpu::relu, [](double x) { return Wanted{x < 0 ? 0 : x}; }),
      derivative("relu_backward", 0, cpu::relu_backward, [](double y, double dy) { return Wanted{y <= 0 ? 0 : dy}; }),
      function("tanh", 1.1, cpu::tanh, [](double x) { return Wanted{std::tanh(x)}; }),
      derivative(
          "tanh_backward", 1.5, cpu::tanh_backward,
          [](double y, double dy) {
            return Wanted{dy * (1 - y * y), std::abs(dy) * (1 + y * y)};
          },
          1),
      function("gelu", 4, cpu::gelu,
               [](double x) {
                 const double value = x / (1 + std::exp(-gelu_argument(x)));
                 return Wanted{value, std::abs(value) * gelu_terms(x) + std::abs(x) * 1e-28};
               }),
      derivative("gelu_backward", 6, cpu::gelu_backward,
                 [](double input, double dy) {
                   // Below -10 the derivative is held at 3e-36, not 0; that of an infinity is NaN, as in PyTorch.
                   const double x = std::max(input, -10.0) + (input - input);
                   const double s = sigmoid(gelu_argument(x)), bell = x * s * (1 - s) * kGelu * (1 + 0.134145 * x * x);
                   return Wanted{dy * (s + bell), std::abs(dy) * ((s + std::abs(bell)) * gelu_terms(x) + 1e-28)};
                 }),
  };
}

std::vector<Operation> sums_and_products() {
  return {
      derivative("add", 0.5, cpu::add, [](double a, double b) { return Wanted{a + b}; }),
      derivative("multiply", 0.5, cpu::multiply, [](double a, double b) { return Wanted{a * b}; }),
      {"scale", 0.5, [](Into out, const float* a, const float*, std::int64_t n) { k.scale(out, a, -1.7f, n); },
       [](double a, double) { return Wanted{a * static_cast<double>(-1.7f)}; }},
      {"expand", 0.5,
       [](Into out, const float* a, const float*, std::int64_t n) {
         for (std::int64_t i = 0; i < n; ++i) k.expand({out.data + i, out.add}, a + i, 0.3f, 1);
       },
       [](double a, double) { return Wanted{a * static_cast<double>(0.3f)}; }},
      {"add_row", 0.5,
       [](Into out, const float* a, const float* b, std::int64_t n) { k.add_row(out.data, a, b, 1, n); },
       [](double a, double b) { return Wanted{a + b}; }, false},
      {"sum_rows of one", 0.5, [](Into out, const float* a, const float*, std::int64_t n) { k.sum_rows(out, a, 1, n); },
       [](double a, double) { return Wanted{a}; }},
      {"transpose", 0.5, [](Into out, const float* a, const float*, std::int64_t n) { k.transpose(out, a, 1, n); },
       [](double a, double) { return Wanted{a}; }},
      {"mse_backward", 1,
       [](Into out, const float* a, const float* b, std::int64_t n) {
         const float dloss = static_cast<float>(n) / 6;
         k.mse_backward(out, &dloss, a, b, 1, n);
       },
       [](double a, double b) {
         return Wanted{kShare * (a - b), std::abs(a - b)};
       }},
      {"dropout_backward", 1.5,
       [](Into out, const float* a, const float*, std::int64_t n) {
         const std::vector<std::uint8_t> mask(static_cast<std::size_t>(n), 1);
         k.dropout_backward(out, a, mask.data(), 0.7f, n);
       },
       [](double a, double) { return Wanted{a / static_cast<double>(0.7f)}; }},
  };
}

std::vector<Operation> operations() {
  std::vector<Operation> result = functions();
  for (Operation& operation : sums_and_products()) result.push_back(std::move(operation));
  return result;
}

std::vector<float> clamped(const Operation& operation, std::vector<float> a) {
  for (float& value : a) value = std::clamp(value, -operation.largest, operation.largest);
  return a;
}

std::vector<float> run(const Operation& operation, const std::vector<float>& a, const std::vector<float>& b,
                       std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count) + 1, 7);
  operation.run({out.data(), false}, a.data(), b.data(), count);
  EXPECT_EQ(out.back(), 7) << operation.name << " writes beyond its end";
  out.pop_back();
  return out;
}

void compare(const Operation& operation, const std::vector<float>& firsts, const std::vector<float>& b,
             std::int64_t count, Worst& worst) {
  const std::vector<float> a = clamped(operation, firsts), out = run(operation, a, b, count);
  for (std::size_t i = 0; i < out.size(); ++i) {
    worst.add(out[i], operation.wanted(static_cast<double>(a[i]), static_cast<double>(b[i])), a[i], b[i]);
  }
}

// Over offsets and scales; of all pairs of NaN, infinity and the edges of the range; and between the scales, where
// functions bend: 2^16 numbers from -20 to 20.
TEST(ElementwiseSweep, EqualsDouble) {
  constexpr std::int64_t kCount = 1 << 16;
  std::vector<float> firsts, seconds, bend;
  for (const float first : kSpecial) {
    firsts.insert(firsts.end(), kSpecial.size(), first);
    seconds.insert(seconds.end(), kSpecial.begin(), kSpecial.end());
  }
  for (std::int64_t i = 0; i < kCount; ++i) bend.push_back(static_cast<float>(i - kCount / 2) * (40.0f / kCount));
  for (const Operation& operation : operations()) {
    Worst worst(operation.name);
    for (const Range& range : ranges()) {
      const std::vector<float> a = values_in(range, kSizes.back(), 1), b = values_in({0, 2}, kSizes.back(), 2);
      for (const std::int64_t size : kSizes) compare(operation, a, b, size, worst);
    }
    compare(operation, firsts, seconds, static_cast<std::int64_t>(firsts.size()), worst);
    compare(operation, bend, std::vector<float>(kCount, 1), kCount, worst);
    worst.expect_at_most(operation.ulps);
  }
}

// A replica's element may lie in a vector, another's in the remainder behind the vectors.
TEST(ElementwiseSweep, AnElementsBitsDoNotDependOnItsPlace) {
  for (const Operation& operation : operations()) {
    for (const Range& range : {Range{0, 1e-40f}, Range{0, 0.3f}, Range{0, 5}, Range{1e3f, 1e30f}}) {
      const std::int64_t most = kSizes.back();
      const std::vector<float> a = clamped(operation, values_in(range, most, 3)), b = values_in({0, 2}, most, 4);
      for (std::int64_t i = 0; i < most; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const std::vector<float> same(static_cast<std::size_t>(most), a[at]), other(same.size(), b[at]);
        const std::vector<float> out = run(operation, same, other, most);
        for (const float value : out) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(value), std::bit_cast<std::uint32_t>(out[0]))
              << operation.name << " at " << a[at] << ", " << b[at];
        }
      }
    }
  }
}

TEST(ElementwiseSweep, WhatIsAddedIsWhatIsWritten) {
  const std::vector<float> a = values_in({0, 3}, 33, 5), b = values_in({0, 2}, 33, 6);
  for (const Operation& operation : operations()) {
    if (!operation.adds) continue;
    const std::vector<float> alone = run(operation, a, b, 33);
    std::vector<float> out(33, 0.25f);
    operation.run({out.data(), true}, a.data(), b.data(), 33);
    Worst worst(operation.name);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double value = static_cast<double>(alone[i]);
      worst.add(out[i], {0.25 + value, 0.25 + std::abs(value)}, a[i], b[i]);
    }
    worst.expect_at_most(1.5);
  }
}

TEST(ElementwiseSweep, CopiesKeepEveryBit) {
  std::vector<float> out(kSpecial.size());
  const auto count = static_cast<std::int64_t>(kSpecial.size());
  const auto expect_copy = [&](const char* name) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(kSpecial[i])) << name << " " << i;
    }
  };
  k.transpose({out.data(), false}, kSpecial.data(), count / 2, 2);
  std::vector<float> back(out.size());
  k.transpose({back.data(), false}, out.data(), 2, count / 2);
  out = back;
  expect_copy("transpose");
  const std::int64_t first = 0;
  k.embedding(out.data(), kSpecial.data(), &first, 1, 1, count);
  expect_copy("embedding");
  k.scale({out.data(), false}, kSpecial.data(), 1.0f, count);
  expect_copy("scale by 1");
}

// PyTorch 1.13: torch.nn.functional.dropout of NaN and infinity is NaN where it drops them.
TEST(ElementwiseSweep, DropoutScalesAndHidesNoNan) {
  constexpr std::int64_t kCount = 131;
  std::vector<float> out(kCount), nan(kCount, testing::kNan), infinite(kCount, testing::kInfinity);
  std::vector<std::uint8_t> mask(kCount);
  const std::int64_t id = 3;
  Worst worst("dropout");
  for (const Range& range : ranges()) {
    const std::vector<float> x = values_in(range, kCount, 7);
    k.dropout(out.data(), mask.data(), x.data(), {.seed = 1}, &id, 1, kCount, 0.7f);
    for (std::size_t i = 0; i < kCount; ++i) {
      worst.add(out[i], {mask[i] != 0 ? static_cast<double>(x[i]) / static_cast<double>(0.7f) : 0}, x[i]);
    }
  }
  worst.expect_at_most(1.5);
  EXPECT_GT(std::count(mask.begin(), mask.end(), 0), 0);
  k.dropout(out.data(), mask.data(), nan.data(), {.seed = 1}, &id, 1, kCount, 0.7f);
  EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float value) { return std::isnan(value); }));
  k.dropout(out.data(), mask.data(), infinite.data(), {.seed = 1}, &id, 1, kCount, 0.7f);
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(std::isnan(out[i]), mask[i] == 0) << i;
  k.dropout_backward({out.data(), false}, nan.data(), mask.data(), 0.7f, kCount);
  EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float value) { return std::isnan(value); }));
}

}  // namespace
}  // namespace lockstep::elementwise_sweep_test
