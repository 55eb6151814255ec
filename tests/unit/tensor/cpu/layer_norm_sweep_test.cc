// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "runtime/tensor/cpu/cpu_kernels.h"
#include "tests/unit/tensor/cpu/sweep.h"

// layer_norm against double. Where PyTorch's variance overflows (1.13 on the CPU: from 1e19 on) and its row becomes
// NaN, ours is the number.
namespace lockstep::layer_norm_sweep_test {
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
using Doubles = std::vector<double>;

Kernels& k = cpu_kernels();

struct LayerNormCase {
  LayerNormShape shape;
  Floats x, gain, bias, dy;
};

LayerNormCase layer_norm_case(const Range& range, std::int64_t rows, std::int64_t columns) {
  return {{.rows = rows, .columns = columns, .epsilon = 1e-5f},
          values_in(range, rows * columns, 1),
          values_in({1, 1}, columns, 2),
          values_in({0, 1}, columns, 3),
          values_in({0, 1}, rows * columns, 4)};
}

// (x - mean) / deviation in double; the deviation is left in `deviation`.
Doubles normalised(const LayerNormCase& c, std::size_t row, double& deviation) {
  const auto columns = static_cast<std::size_t>(c.shape.columns);
  Doubles result(c.x.begin() + static_cast<std::ptrdiff_t>(row * columns),
                 c.x.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns));
  const double count = static_cast<double>(columns);
  const double mean = std::accumulate(result.begin(), result.end(), 0.0) / count;
  double squares = 0;
  for (double& value : result) {
    value -= mean;
    squares += value * value;
  }
  deviation = std::sqrt(squares / count + in_double(c.shape.epsilon));
  for (double& value : result) value /= deviation;
  return result;
}

struct LayerNormResult {
  Floats y, rstd, dx, dgain, dbias;
  Doubles mean;
};

LayerNormResult run(const LayerNormCase& c) {
  const auto rows = static_cast<std::size_t>(c.shape.rows), columns = static_cast<std::size_t>(c.shape.columns);
  LayerNormResult r{Floats(c.x.size()),    Floats(rows),    Floats(c.x.size()),
                    Floats(columns, 0.5f), Floats(columns), Doubles(rows)};
  k.layer_norm(r.y.data(), r.mean.data(), r.rstd.data(), c.x.data(), c.gain.data(), c.bias.data(), c.shape);
  k.layer_norm_backward({r.dx.data(), false}, {r.dgain.data(), false}, {r.dbias.data(), false}, c.dy.data(), c.x.data(),
                        r.mean.data(), r.rstd.data(), c.gain.data(), c.shape);
  return r;
}

void check_row(const LayerNormCase& c, const LayerNormResult& r, std::size_t row, Worst& forward, Worst& backward) {
  const auto columns = static_cast<std::size_t>(c.shape.columns);
  double deviation = 0;
  const Doubles n = normalised(c, row, deviation);
  Wanted h{0, 0}, hn{0, 0};
  for (std::size_t i = 0; i < columns; ++i) {
    const double product = in_double(c.dy[row * columns + i]) * in_double(c.gain[i]) / static_cast<double>(columns);
    h = {h.value + product, h.terms + std::abs(product)};
    hn = {hn.value + product * n[i], hn.terms + std::abs(product * n[i])};
  }
  for (std::size_t i = 0; i < columns; ++i) {
    const std::size_t at = row * columns + i;
    const double gain = in_double(c.gain[i]), bias = in_double(c.bias[i]), product = in_double(c.dy[at]) * gain;
    forward.add(r.y[at], {n[i] * gain + bias, std::abs(n[i] * gain) + std::abs(bias)}, c.x[at], columns);
    backward.add(r.dx[at],
                 {(product - h.value - n[i] * hn.value) / deviation,
                  (std::abs(product) + h.terms + std::abs(n[i]) * hn.terms) / deviation},
                 c.x[at], columns);
  }
}

TEST(LayerNormSweep, LayerNormEqualsDouble) {
  Worst forward("layer_norm"), backward("layer_norm_backward dx");
  for (const Range& range : ranges()) {
    for (const std::int64_t columns : kSizes) {
      const LayerNormCase c = layer_norm_case(range, 3, columns);
      const LayerNormResult r = run(c);
      for (std::size_t row = 0; row < 3; ++row) check_row(c, r, row, forward, backward);
    }
  }
  forward.expect_at_most(4);
  backward.expect_at_most(6);
}

TEST(LayerNormSweep, LayerNormsParametersEqualDoubleOverManyRows) {
  Worst gains("layer_norm_backward dgain"), biases("layer_norm_backward dbias");
  for (const Range& range : {Range{0, 1}, Range{1e4f, 1}, Range{1e6f, 1e20f}}) {
    const LayerNormCase c = layer_norm_case(range, 3000, 17);
    const LayerNormResult r = run(c);
    std::vector<Wanted> gain(17, {0, 0}), bias(17, {0, 0});
    for (std::size_t row = 0; row < 3000; ++row) {
      double deviation = 0;
      const Doubles n = normalised(c, row, deviation);
      for (std::size_t i = 0; i < 17; ++i) {
        const double dy = in_double(c.dy[row * 17 + i]);
        gain[i] = {gain[i].value + dy * n[i], gain[i].terms + std::abs(dy * n[i])};
        bias[i] = {bias[i].value + dy, bias[i].terms + std::abs(dy)};
      }
    }
    for (std::size_t i = 0; i < 17; ++i) {
      gains.add(r.dgain[i], gain[i], range.offset, range.scale);
      biases.add(r.dbias[i], bias[i], range.offset, range.scale);
    }
  }
  gains.expect_at_most(2);
  biases.expect_at_most(2);
}

TEST(LayerNormSweep, LayerNormOfEqualValuesIsItsBias) {
  for (const float value : {0.0f, 3.7f, -1e6f, 1e-40f, 1e30f}) {
    LayerNormCase c = layer_norm_case({0, 1}, 1, 33);
    std::fill(c.x.begin(), c.x.end(), value);
    EXPECT_EQ(run(c).y, c.bias) << value;
  }
}

TEST(LayerNormSweep, LayerNormShowsNanAndInfinityInTheWholeRowAndNoOther) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    LayerNormCase c = layer_norm_case({0, 1}, 2, 17);
    c.x[5] = bad;
    const LayerNormResult r = run(c);
    for (std::size_t i = 0; i < c.x.size(); ++i) {
      EXPECT_EQ(std::isnan(r.y[i]), i < 17) << bad << " " << i;
      EXPECT_EQ(std::isnan(r.dx[i]), i < 17) << bad << " " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::layer_norm_sweep_test
