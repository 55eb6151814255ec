// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "runtime/tensor/cpu/cpu_kernels.h"
#include "tests/unit/tensor/cpu/sweep.h"

// What holds a softmax, and layer_norm, against double. NaN and infinity are what PyTorch 1.13 gives on the CPU.
namespace lockstep::row_sweep_test {
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

struct CrossEntropy {
  float loss = 0;
  Floats gradient;
};

CrossEntropy cross_entropy(const Floats& logits, const std::vector<std::int64_t>& targets, std::int64_t columns) {
  const auto rows = static_cast<std::int64_t>(targets.size());
  CrossEntropy result{0, Floats(logits.size())};
  Floats largest(targets.size()), sums(targets.size());
  std::int64_t counted = 0;
  k.cross_entropy(&result.loss, &counted, largest.data(), sums.data(), logits.data(), targets.data(), rows, columns,
                  -100);
  const float one = 1;
  k.cross_entropy_backward({result.gradient.data(), false}, &one, &counted, largest.data(), sums.data(), logits.data(),
                           targets.data(), rows, columns, -100);
  return result;
}

// The softmax of a row; how far each logit is below the largest in `below`: rounded in float, as in PyTorch.
Doubles softmax(const float* row, std::int64_t columns, Doubles& below) {
  const double largest = in_double(*std::max_element(row, row + columns));
  Doubles result;
  below.clear();
  double total = 0;
  for (std::int64_t c = 0; c < columns; ++c) {
    below.push_back(largest - in_double(row[c]));
    result.push_back(std::exp(-below.back()));
    total += result.back();
  }
  for (double& value : result) value /= total;
  return result;
}

TEST(SoftmaxSweep, CrossEntropysGradientEqualsDoubleWhateverTheOffset) {
  Worst losses("cross_entropy"), gradients("cross_entropy_backward");
  for (const Range& range : ranges()) {
    for (const std::int64_t columns : kSizes) {
      if (columns == 0) continue;
      const Floats logits = values_in(range, columns, 1);
      for (const std::int64_t target : {std::int64_t{0}, columns - 1}) {
        const CrossEntropy got = cross_entropy(logits, {target}, columns);
        Doubles below;
        const Doubles p = softmax(logits.data(), columns, below);
        const auto at = static_cast<std::size_t>(target);
        const double total = std::accumulate(below.begin(), below.end(), 0.0,
                                             [](double sum, double distance) { return sum + std::exp(-distance); });
        losses.add(got.loss, {std::log(total) + below[at], 1 + below[at]}, range.offset, range.scale, columns);
        double row_sum = 0;
        for (std::size_t c = 0; c < p.size(); ++c) {
          const double one = c == at ? 1 : 0;
          gradients.add(got.gradient[c], {p[c] - one, p[c] * (1 + 0.2 * std::min(below[c], 110.0)) + one}, range.offset,
                        range.scale, columns, c);
          row_sum += in_double(got.gradient[c]);
        }
        EXPECT_NEAR(row_sum, 0, 5e-7) << range.offset << " " << range.scale << " " << columns;
      }
    }
  }
  losses.expect_at_most(2);
  gradients.expect_at_most(4);
}

TEST(SoftmaxSweep, CrossEntropyOfInfiniteLogitsIsAsInPyTorch) {
  struct Case {
    Floats row;
    std::int64_t target;
    float loss;
    Floats gradient;
  };
  const float sigmoid = 0.2689414322376251f, rest = 0.7310585975646973f;
  for (const Case& c : {Case{{kInfinity, 0, 1}, 0, kNan, {kNan, kNan, kNan}},
                        Case{{-kInfinity, 0, 1}, 0, kInfinity, {-1, sigmoid, rest}},
                        Case{{-kInfinity, 0, 1}, 1, 1.31326162815094f, {0, -rest, rest}},
                        Case{{-kInfinity, -kInfinity, -kInfinity}, 1, kNan, {kNan, kNan, kNan}},
                        Case{{0, kNan, 1}, 0, kNan, {kNan, kNan, kNan}}, Case{{3e38f, -3e38f, 0}, 0, 0, {0, 0, 0}},
                        Case{{3e38f, -3e38f, 0}, 1, kInfinity, {1, -1, 0}}}) {
    const CrossEntropy got = cross_entropy(c.row, {c.target}, 3);
    Worst worst("cross_entropy");
    worst.add(got.loss, {in_double(c.loss)}, "the loss of ", c.row[0]);
    for (std::size_t i = 0; i < 3; ++i) {
      worst.add(got.gradient[i], {in_double(c.gradient[i]), std::isnan(c.gradient[i]) ? 0.0 : 1.0}, c.row[0], i);
    }
    worst.expect_at_most(2);
  }
}

struct Attention {
  AttentionShape shape;
  Floats out, weights, dqkv;
};

Attention attention(const Floats& qkv, const Floats& dout, const AttentionShape& shape) {
  const std::int64_t positions = shape.batch * shape.time * shape.heads;
  Attention result{shape, Floats(static_cast<std::size_t>(positions * shape.head_size)),
                   Floats(static_cast<std::size_t>(positions * shape.time)), Floats(qkv.size())};
  k.attention(result.out.data(), result.weights.data(), qkv.data(), shape);
  k.attention_backward({result.dqkv.data(), false}, dout.data(), result.weights.data(), qkv.data(), shape);
  return result;
}

// One head of one channel and queries of 1: a score is its key, exactly, so that all offsets and scales can be tried.
TEST(SoftmaxSweep, AttentionEqualsDoubleWhateverTheScores) {
  Worst outs("attention"), values("attention_backward dv"), keys("attention_backward dk");
  for (const Range& range : ranges(1e-30f, 1e15f)) {
    for (const std::int64_t time : kSizes) {
      const Floats key = values_in(range, time, 1), value = values_in({0, 1}, time, 2),
                   dout = values_in({0, 1}, time, 3);
      Floats qkv;
      for (std::size_t t = 0; t < key.size(); ++t) qkv.insert(qkv.end(), {1.0f, key[t], value[t]});
      const Attention got = attention(qkv, dout, {.batch = 1, .time = time, .heads = 1, .head_size = 1});
      std::vector<Wanted> dk(key.size(), {0, 0}), dv(key.size(), {0, 0});
      for (std::size_t i = 0; i < key.size(); ++i) {
        Doubles below;
        const Doubles w = softmax(key.data(), static_cast<std::int64_t>(i) + 1, below);
        Wanted mean{0, 0};
        const auto weight = [&](std::size_t j) { return w[j] * (1 + 0.2 * std::min(below[j], 110.0)); };
        for (std::size_t j = 0; j <= i; ++j) {
          mean = {mean.value + w[j] * in_double(value[j]), mean.terms + weight(j) * std::abs(in_double(value[j]))};
        }
        outs.add(got.out[i], mean, range.offset, range.scale, time, i);
        const double dy = in_double(dout[i]);
        for (std::size_t j = 0; j <= i; ++j) {
          dv[j] = {dv[j].value + w[j] * dy, dv[j].terms + weight(j) * std::abs(dy)};
          dk[j] = {dk[j].value + w[j] * dy * (in_double(value[j]) - mean.value),
                   dk[j].terms + weight(j) * std::abs(dy) * (std::abs(in_double(value[j])) + mean.terms)};
        }
      }
      for (std::size_t j = 0; j < key.size(); ++j) {
        keys.add(got.dqkv[3 * j + 1], dk[j], range.offset, range.scale, time, j);
        values.add(got.dqkv[3 * j + 2], dv[j], range.offset, range.scale, time, j);
      }
    }
  }
  outs.expect_at_most(6);
  keys.expect_at_most(8);
  values.expect_at_most(6);
}

TEST(SoftmaxSweep, AttentionShowsNanFromItsPositionOn) {
  const AttentionShape shape{.batch = 1, .time = 9, .heads = 1, .head_size = 2};
  Floats qkv = values_in({0, 1}, 9 * 6, 1);
  qkv[4 * 6 + 2] = kNan;  // a key of position 4
  const Attention got = attention(qkv, values_in({0, 1}, 18, 2), shape);
  for (std::size_t t = 0; t < 9; ++t) EXPECT_EQ(std::isnan(got.out[2 * t]), t >= 4) << t;
}

// layer_norm: where PyTorch's variance overflows (1.13 on the CPU: from 1e19 on) and its row becomes NaN, ours is the
// number.
struct LayerNorm {
  LayerNormShape shape;
  Floats x, gain, bias, dy;
  Floats y, rstd, dx, dgain, dbias;
  Doubles mean;

  LayerNorm(const Range& range, std::int64_t rows, std::int64_t columns)
      : shape{.rows = rows, .columns = columns, .epsilon = 1e-5f},
        x(values_in(range, rows * columns, 1)),
        gain(values_in({1, 1}, columns, 2)),
        bias(values_in({0, 1}, columns, 3)),
        dy(values_in({0, 1}, rows * columns, 4)),
        y(x.size()),
        rstd(static_cast<std::size_t>(rows)),
        dx(x.size()),
        dgain(gain.size(), 0.5f),
        dbias(gain.size()),
        mean(rstd.size()) {}
  LayerNorm& run() {
    k.layer_norm(y.data(), mean.data(), rstd.data(), x.data(), gain.data(), bias.data(), shape);
    k.layer_norm_backward({dx.data(), false}, {dgain.data(), false}, {dbias.data(), false}, dy.data(), x.data(),
                          mean.data(), rstd.data(), gain.data(), shape);
    return *this;
  }
};

// (x - mean) / deviation in double; the deviation is left in `deviation`.
Doubles normalised(const LayerNorm& c, std::size_t row, double& deviation) {
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

void check_row(const LayerNorm& c, std::size_t row, Worst& forward, Worst& backward) {
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
    forward.add(c.y[at], {n[i] * gain + bias, std::abs(n[i] * gain) + std::abs(bias)}, c.x[at], columns);
    backward.add(c.dx[at],
                 {(product - h.value - n[i] * hn.value) / deviation,
                  (std::abs(product) + h.terms + std::abs(n[i]) * hn.terms) / deviation},
                 c.x[at], columns);
  }
}

TEST(LayerNormSweep, LayerNormEqualsDouble) {
  Worst forward("layer_norm"), backward("layer_norm_backward dx");
  for (const Range& range : ranges()) {
    for (const std::int64_t columns : kSizes) {
      const LayerNorm c = LayerNorm(range, 3, columns).run();
      for (std::size_t row = 0; row < 3; ++row) check_row(c, row, forward, backward);
    }
  }
  forward.expect_at_most(4);
  backward.expect_at_most(6);
}

TEST(LayerNormSweep, LayerNormsParametersEqualDoubleOverManyRows) {
  Worst gains("layer_norm_backward dgain"), biases("layer_norm_backward dbias");
  for (const Range& range : {Range{0, 1}, Range{1e4f, 1}, Range{1e6f, 1e20f}}) {
    const LayerNorm c = LayerNorm(range, 3000, 17).run();
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
      gains.add(c.dgain[i], gain[i], range.offset, range.scale);
      biases.add(c.dbias[i], bias[i], range.offset, range.scale);
    }
  }
  gains.expect_at_most(2);
  biases.expect_at_most(2);
}

TEST(LayerNormSweep, LayerNormOfEqualValuesIsItsBias) {
  for (const float value : {0.0f, 3.7f, -1e6f, 1e-40f, 1e30f}) {
    LayerNorm c({0, 1}, 1, 33);
    std::fill(c.x.begin(), c.x.end(), value);
    EXPECT_EQ(c.run().y, c.bias) << value;
  }
}

TEST(LayerNormSweep, LayerNormShowsNanAndInfinityInTheWholeRowAndNoOther) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    LayerNorm c({0, 1}, 2, 17);
    c.x[5] = bad;
    c.run();
    for (std::size_t i = 0; i < c.x.size(); ++i) {
      EXPECT_EQ(std::isnan(c.y[i]), i < 17) << bad << " " << i;
      EXPECT_EQ(std::isnan(c.dx[i]), i < 17) << bad << " " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::row_sweep_test
