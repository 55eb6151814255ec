// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <numbers>

#include "tests/unit/tensor/cuda/both.h"

// Each operation of a GPU beside its formula in double: shapes, offsets in memory and strides are drawn, no rows among
// them; results hold NaN before.
namespace lockstep::formulas_test {
namespace {

using testing::gpu_kernels;
using testing::random_floats;
using testing::random_indices;
using A = testing::Arrays;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;

constexpr float kAlpha = 0.75f;
constexpr std::int64_t kIgnore = -100;

double d(float value) { return static_cast<double>(value); }
std::size_t z(std::int64_t i) { return static_cast<std::size_t>(i); }

class Formula : public ::testing::TestWithParam<int> {
 protected:
  std::int64_t draw(std::int64_t from, std::int64_t to) {
    return from + static_cast<std::int64_t>(generator_.below(z(to - from + 1)));
  }
  Floats floats(std::int64_t count, float scale = 1) { return random_floats(count, ++stream_, scale); }

  // Where a result goes: what was there before, and the result added to it or not.
  Into into(A& arrays, const Floats& before) {
    return {adds_ ? arrays.inout(before) : arrays.out<float>(static_cast<std::int64_t>(before.size())), adds_};
  }
  double base(const Floats& before, std::size_t i) const { return adds_ ? d(before[i]) : 0.0; }

  // `wanted`: of each array of results, in order; a result may be off by `tolerance` of 1 + its size.
  void expect(const std::vector<Doubles>& wanted, double tolerance, const testing::Operation& operation) {
    testing::order_threads_by(stream_);
    const auto results = testing::results_of(gpu_kernels(), draw(0, 5), operation);
    ASSERT_EQ(results.size(), wanted.size());
    for (std::size_t k = 0; k < wanted.size(); ++k) {
      const std::size_t count = wanted[k].size();
      if (count == 0) continue;
      for (std::size_t i = 0; i < count; ++i) {
        double got = 0;
        if (results[k].size() == count * sizeof(float)) {
          float value = 0;
          std::memcpy(&value, results[k].data() + i * sizeof value, sizeof value);
          got = d(value);
        } else {
          ASSERT_EQ(results[k].size(), count * sizeof(double));
          std::memcpy(&got, results[k].data() + i * sizeof got, sizeof got);
        }
        ASSERT_LE(std::abs(got - wanted[k][i]), tolerance * (1 + std::abs(wanted[k][i])))
            << "result " << k << ", element " << i << " of " << count << (adds_ ? ", added" : "");
      }
    }
  }
  // Both ways of Into.
  template <typename Body>
  void either_way(const Body& body) {
    for (const bool add : {false, true}) {
      adds_ = add;
      body();
      if (HasFatalFailure()) return;
    }
  }

 private:
  std::uint64_t stream_ = z(GetParam()) * 1000;
  Generator generator_{2029, z(GetParam())};
  bool adds_ = false;
};

TEST_P(Formula, Elementwise) {
  const std::int64_t n = GetParam() == 0 ? 0 : draw(1, 3000);
  const Floats x = floats(n, 3), y = floats(n, 3), before = floats(n);
  const auto each = [&](const auto& value) {
    Doubles wanted(z(n));
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = value(d(x[i]), d(y[i]), i);
    return std::vector<Doubles>{wanted};
  };
  const auto gelu_slope = [](double v) {
    const double c = std::sqrt(2 / std::numbers::pi), t = std::tanh(c * (v + 0.044715 * v * v * v));
    return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * c * (1 + 3 * 0.044715 * v * v);
  };
  expect(each([](double, double, std::size_t) { return 2.5; }), 0,
         [&](Kernels& k, A& a) { k.fill(a.out<float>(n), 2.5f, n); });
  expect(each([](double u, double, std::size_t) { return std::max(u, 0.0); }), 0,
         [&](Kernels& k, A& a) { k.relu(a.out<float>(n), a.in(x), n); });
  expect(each([](double u, double, std::size_t) { return std::tanh(u); }), 3e-7,
         [&](Kernels& k, A& a) { k.tanh(a.out<float>(n), a.in(x), n); });
  expect(each([](double u, double, std::size_t) {
           return 0.5 * u * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (u + 0.044715 * u * u * u)));
         }),
         1e-6, [&](Kernels& k, A& a) { k.gelu(a.out<float>(n), a.in(x), n); });
  expect(each([](double u, double, std::size_t) { return u * d(kAlpha); }), 2e-7,
         [&](Kernels& k, A& a) { k.scale_by(a.inout(x), a.in(Floats{kAlpha}), n); });
  either_way([&] {
    const auto plus = [&](const auto& value) {
      return each([&](double u, double v, std::size_t i) { return base(before, i) + value(u, v); });
    };
    expect(plus([](double u, double v) { return u + v; }), 3e-7,
           [&](Kernels& k, A& a) { k.add(into(a, before), a.in(x), a.in(y), n); });
    expect(plus([](double u, double v) { return u * v; }), 3e-7,
           [&](Kernels& k, A& a) { k.multiply(into(a, before), a.in(x), a.in(y), n); });
    expect(plus([](double u, double) { return d(kAlpha) * u; }), 3e-7,
           [&](Kernels& k, A& a) { k.scale(into(a, before), a.in(x), kAlpha, n); });
    expect(plus([](double u, double v) { return u > 0 ? v : 0; }), 3e-7,
           [&](Kernels& k, A& a) { k.relu_backward(into(a, before), a.in(x), a.in(y), n); });
    expect(plus([](double u, double v) { return v * (1 - u * u); }), 3e-6,
           [&](Kernels& k, A& a) { k.tanh_backward(into(a, before), a.in(x), a.in(y), n); });
    expect(plus([&](double u, double v) { return v * gelu_slope(u); }), 3e-6,
           [&](Kernels& k, A& a) { k.gelu_backward(into(a, before), a.in(x), a.in(y), n); });
    expect(plus([&](double, double) { return d(kAlpha) * 3; }), 3e-7,
           [&](Kernels& k, A& a) { k.expand(into(a, before), a.in(Floats{3}), kAlpha, n); });
    expect(plus([&](double u, double v) { return -2 * (u - v) / static_cast<double>(n) * d(kAlpha); }), 3e-7,
           [&](Kernels& k, A& a) { k.mse_backward(into(a, before), a.in(Floats{kAlpha}), a.in(x), a.in(y), -1, n); });
  });
}

TEST_P(Formula, RowsAndSums) {
  const std::int64_t rows = GetParam() == 0 ? 0 : draw(1, 200), columns = draw(1, 150), n = rows * columns;
  const Floats x = floats(n), y = floats(n), row = floats(columns), before = floats(n), one = floats(1);
  const Floats before_row = floats(columns);
  Doubles shifted(z(n));
  for (std::int64_t i = 0; i < n; ++i) shifted[z(i)] = d(x[z(i)]) + d(row[z(i % columns)]);
  expect({shifted}, 2e-7, [&](Kernels& k, A& a) { k.add_row(a.out<float>(n), a.in(x), a.in(row), rows, columns); });
  double squares = 0, apart = 0, total = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    squares += d(x[i]) * d(x[i]);
    apart += (d(x[i]) - d(y[i])) * (d(x[i]) - d(y[i]));
    total += d(x[i]);
  }
  expect({{squares}}, 1e-13, [&](Kernels& k, A& a) { k.sum_squares(a.out<double>(1), a.in(x), n); });
  expect({{n == 0 ? 0 : apart / static_cast<double>(n)}}, 3e-7,
         [&](Kernels& k, A& a) { k.mse(a.out<float>(1), a.in(x), a.in(y), n); });
  either_way([&] {
    Doubles turned(z(n)), sums(z(columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        turned[z(c * rows + r)] = base(before, z(c * rows + r)) + d(x[z(r * columns + c)]);
        sums[z(c)] += d(x[z(r * columns + c)]);
      }
    }
    for (std::size_t c = 0; c < sums.size(); ++c) sums[c] += base(before_row, c);
    expect({turned}, 2e-7, [&](Kernels& k, A& a) { k.transpose(into(a, before), a.in(x), rows, columns); });
    expect({sums}, 2e-7, [&](Kernels& k, A& a) { k.sum_rows(into(a, before_row), a.in(x), rows, columns); });
    expect({{base(one, 0) + d(kAlpha) * total}}, 2e-7,
           [&](Kernels& k, A& a) { k.sum(into(a, one), a.in(x), kAlpha, n); });
  });
}

TEST_P(Formula, LayerNorm) {
  const std::int64_t rows = GetParam() == 0 ? 0 : draw(1, 100), columns = draw(1, 400), n = rows * columns;
  const LayerNormShape shape{.rows = rows, .columns = columns};
  const Floats x = floats(n, 2), dy = floats(n), gain = floats(columns), bias = floats(columns), before = floats(n);
  const Floats before_gain = floats(columns), before_bias = floats(columns);
  Doubles out(z(n)), mean(z(rows)), rstd(z(rows)), dx(z(n)), dgain(z(columns)), dbias(z(columns));
  const auto width = static_cast<double>(columns);
  for (std::int64_t r = 0; r < rows; ++r) {
    double m = 0, variance = 0, h = 0, hn = 0;
    const auto at = [&](std::int64_t c) { return z(r * columns + c); };
    for (std::int64_t c = 0; c < columns; ++c) m += d(x[at(c)]) / width;
    for (std::int64_t c = 0; c < columns; ++c) variance += (d(x[at(c)]) - m) * (d(x[at(c)]) - m) / width;
    const double s = 1 / std::sqrt(variance + d(shape.epsilon));
    mean[z(r)] = m;
    rstd[z(r)] = s;
    for (std::int64_t c = 0; c < columns; ++c) {
      const double normal = (d(x[at(c)]) - m) * s, g = d(dy[at(c)]) * d(gain[z(c)]);
      out[at(c)] = normal * d(gain[z(c)]) + d(bias[z(c)]);
      h += g / width;
      hn += g * normal / width;
      dgain[z(c)] += d(dy[at(c)]) * normal;
      dbias[z(c)] += d(dy[at(c)]);
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      const double normal = (d(x[at(c)]) - m) * s;
      dx[at(c)] = s * (d(dy[at(c)]) * d(gain[z(c)]) - h - normal * hn);
    }
  }
  // A row of one column has no spread, and 1 / sqrt(epsilon) for a standard deviation.
  const double tolerance = columns < 3 ? 1e-3 : 1e-5;
  expect({out, mean, rstd}, tolerance, [&](Kernels& k, A& a) {
    auto* const o = a.out<float>(n);
    auto* const m = a.out<double>(rows);
    auto* const s = a.out<float>(rows);
    k.layer_norm(o, m, s, a.in(x), a.in(gain), a.in(bias), shape);
  });
  const Floats near_rstd(rstd.begin(), rstd.end());
  either_way([&] {
    Doubles wanted_x = dx, wanted_gain = dgain, wanted_bias = dbias;
    for (std::size_t i = 0; i < dx.size(); ++i) wanted_x[i] += base(before, i);
    for (std::size_t i = 0; i < dgain.size(); ++i) {
      wanted_gain[i] += base(before_gain, i);
      wanted_bias[i] += base(before_bias, i);
    }
    expect({wanted_x, wanted_gain, wanted_bias}, tolerance, [&](Kernels& k, A& a) {
      const Into to_x = into(a, before), to_gain = into(a, before_gain), to_bias = into(a, before_bias);
      k.layer_norm_backward(to_x, to_gain, to_bias, a.in(dy), a.in(x), a.in(mean), a.in(near_rstd), a.in(gain), shape);
    });
  });
}

TEST_P(Formula, Embedding) {
  const std::int64_t count = GetParam() == 0 ? 0 : draw(1, 400), rows = draw(1, 40), columns = draw(1, 60);
  const Floats table = floats(rows * columns), dy = floats(count * columns), before = floats(rows * columns);
  const auto indices = random_indices(count, z(GetParam()), rows);
  Doubles picked(z(count * columns));
  for (std::int64_t i = 0; i < count * columns; ++i) {
    picked[z(i)] = d(table[z(indices[z(i / columns)] * columns + i % columns)]);
  }
  expect({picked}, 0, [&](Kernels& k, A& a) {
    k.embedding(a.out<float>(count * columns), a.in(table), a.in(indices), count, rows, columns);
  });
  either_way([&] {
    Doubles sums(z(rows * columns));
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = base(before, i);
    for (std::int64_t i = 0; i < count * columns; ++i) {
      sums[z(indices[z(i / columns)] * columns + i % columns)] += d(dy[z(i)]);
    }
    expect({sums}, 1e-5, [&](Kernels& k, A& a) {
      k.embedding_backward(into(a, before), a.in(dy), a.in(indices), count, rows, columns);
    });
  });
}

TEST_P(Formula, Dropout) {
  const std::int64_t samples = GetParam() == 0 ? 0 : draw(1, 9), elements = draw(1, 500), n = samples * elements;
  const float keep = 0.1f * static_cast<float>(draw(1, 9));
  const Floats x = floats(n), before = floats(n);
  std::vector<std::uint8_t> mask(z(n));
  Floats ignored(z(n));
  const auto ids = random_indices(samples, z(GetParam()), 1000);
  const RandomKey key{.seed = 5, .layer = 7, .step = z(GetParam())};
  cpu_kernels().dropout(ignored.data(), mask.data(), x.data(), key, ids.data(), samples, elements, keep);
  Doubles out(z(n));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = mask[i] != 0 ? d(x[i]) / d(keep) : 0;
  expect({out, {}}, 3e-7, [&](Kernels& k, A& a) {
    float* const to = a.out<float>(n);
    k.dropout(to, a.out<std::uint8_t>(n), a.in(x), key, a.in(ids), samples, elements, keep);
  });
  either_way([&] {
    Doubles wanted = out;
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += base(before, i);
    expect({wanted}, 3e-7,
           [&](Kernels& k, A& a) { k.dropout_backward(into(a, before), a.in(x), a.in(mask), keep, n); });
  });
}

TEST_P(Formula, CrossEntropy) {
  const std::int64_t rows = GetParam() == 0 ? 0 : draw(1, 100), columns = draw(1, 400), n = rows * columns;
  const Floats logits = floats(n, 5), before = floats(n);
  auto targets = random_indices(rows, z(GetParam()), columns);
  for (std::size_t i = 0; i < targets.size(); i += 4) targets[i] = kIgnore;
  Doubles largest(z(rows)), sums(z(rows)), gradient(z(n));
  double loss = 0;
  std::int64_t counted = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto at = [&](std::int64_t c) { return d(logits[z(r * columns + c)]); };
    if (targets[z(r)] == kIgnore) continue;
    ++counted;
    largest[z(r)] = at(0);
    for (std::int64_t c = 0; c < columns; ++c) largest[z(r)] = std::max(largest[z(r)], at(c));
    for (std::int64_t c = 0; c < columns; ++c) sums[z(r)] += std::exp(at(c) - largest[z(r)]);
    loss += std::log(sums[z(r)]) - (at(targets[z(r)]) - largest[z(r)]);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    if (targets[z(r)] == kIgnore) continue;
    for (std::int64_t c = 0; c < columns; ++c) {
      const double share = std::exp(d(logits[z(r * columns + c)]) - largest[z(r)]) / sums[z(r)];
      gradient[z(r * columns + c)] = d(kAlpha) / static_cast<double>(counted) * (share - (c == targets[z(r)] ? 1 : 0));
    }
  }
  expect({{counted == 0 ? 0 : loss / static_cast<double>(counted)}, {}, largest, sums}, 2e-6, [&](Kernels& k, A& a) {
    auto* const to_loss = a.out<float>(1);
    auto* const to_counted = a.out<std::int64_t>(1);
    auto* const to_largest = a.out<float>(rows);
    auto* const to_sums = a.out<float>(rows);
    k.cross_entropy(to_loss, to_counted, to_largest, to_sums, a.in(logits), a.in(targets), rows, columns, kIgnore);
  });
  const Floats near_largest(largest.begin(), largest.end()), near_sums(sums.begin(), sums.end());
  either_way([&] {
    Doubles wanted = gradient;
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += base(before, i);
    expect({wanted}, 2e-6, [&](Kernels& k, A& a) {
      k.cross_entropy_backward(into(a, before), a.in(Floats{kAlpha}), a.in(std::vector<std::int64_t>{counted}),
                               a.in(near_largest), a.in(near_sums), a.in(logits), a.in(targets), rows, columns,
                               kIgnore);
    });
  });
}

TEST_P(Formula, Gemm) {
  const std::int64_t m = GetParam() == 0 ? 0 : draw(1, 70), n = draw(1, 70), inner = GetParam() == 1 ? 0 : draw(1, 90);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const std::int64_t lda = (ta ? m : inner) + draw(0, 5), ldb = (tb ? inner : n) + draw(0, 5), ldc = n + draw(0, 5);
      const Floats x = floats((ta ? inner : m) * lda), y = floats((tb ? n : inner) * ldb), before = floats(m * ldc);
      for (const bool add : {false, true}) {
        Doubles wanted(before.begin(), before.end());  // also between the rows
        for (std::int64_t r = 0; r < m; ++r) {
          for (std::int64_t c = 0; c < n; ++c) {
            double sum = 0;
            for (std::int64_t p = 0; p < inner; ++p) {
              sum += d(x[z(ta ? p * lda + r : r * lda + p)]) * d(y[z(tb ? c * ldb + p : p * ldb + c)]);
            }
            wanted[z(r * ldc + c)] = (add ? d(before[z(r * ldc + c)]) : 0) + d(kAlpha) * sum;
          }
        }
        expect({wanted}, 1e-5, [&](Kernels& k, A& a) {
          k.gemm({.rows = m,
                  .columns = n,
                  .inner = inner,
                  .alpha = kAlpha,
                  .a = {.data = a.in(x), .stride = lda, .transposed = ta},
                  .b = {.data = a.in(y), .stride = ldb, .transposed = tb},
                  .c = {a.inout(before), add},
                  .ldc = ldc});
        });
      }
    }
  }
}

TEST_P(Formula, Attention) {
  const AttentionShape shape{
      .batch = GetParam() == 0 ? 0 : draw(1, 4), .time = draw(1, 40), .heads = draw(1, 4), .head_size = draw(1, 12)};
  const std::int64_t time = shape.time, size = shape.head_size, channels = shape.heads * size, wide = 3 * channels;
  const std::int64_t rows = shape.batch * time;
  const Floats qkv = floats(rows * wide, 2), dout = floats(rows * channels), before = floats(rows * wide);
  Doubles out(z(rows * channels)), weights(z(rows * shape.heads * time)), gradient(z(rows * wide));
  const double factor = 1 / std::sqrt(static_cast<double>(size));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const auto at = [&](std::int64_t part, std::int64_t t, std::int64_t e) {
        return z((b * time + t) * wide + part * channels + h * size + e);
      };
      const auto out_at = [&](std::int64_t t, std::int64_t e) { return z((b * time + t) * channels + h * size + e); };
      for (std::int64_t i = 0; i < time; ++i) {
        double* const w = weights.data() + ((b * shape.heads + h) * time + i) * time;
        double total = 0, dot = 0;
        for (std::int64_t j = 0; j <= i; ++j) {
          double score = 0;
          for (std::int64_t e = 0; e < size; ++e) score += d(qkv[at(0, i, e)]) * d(qkv[at(1, j, e)]);
          w[j] = std::exp(score * factor);
          total += w[j];
        }
        Doubles dw(z(i + 1));
        for (std::int64_t j = 0; j <= i; ++j) {
          w[j] /= total;
          for (std::int64_t e = 0; e < size; ++e) {
            out[out_at(i, e)] += w[j] * d(qkv[at(2, j, e)]);
            dw[z(j)] += d(dout[out_at(i, e)]) * d(qkv[at(2, j, e)]);
            gradient[at(2, j, e)] += w[j] * d(dout[out_at(i, e)]);
          }
          dot += w[j] * dw[z(j)];
        }
        for (std::int64_t j = 0; j <= i; ++j) {
          const double ds = w[j] * (dw[z(j)] - dot) * factor;
          for (std::int64_t e = 0; e < size; ++e) {
            gradient[at(0, i, e)] += ds * d(qkv[at(1, j, e)]);
            gradient[at(1, j, e)] += ds * d(qkv[at(0, i, e)]);
          }
        }
      }
    }
  }
  expect({out, weights}, 1e-5, [&](Kernels& k, A& a) {
    float* const to = a.out<float>(rows * channels);
    k.attention(to, a.out<float>(rows * shape.heads * time), a.in(qkv), shape);
  });
  const Floats near_weights(weights.begin(), weights.end());
  either_way([&] {
    Doubles wanted = gradient;
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += base(before, i);
    expect({wanted}, 2e-5, [&](Kernels& k, A& a) {
      k.attention_backward(into(a, before), a.in(dout), a.in(near_weights), a.in(qkv), shape);
    });
  });
}

TEST_P(Formula, OptimizersAndClipping) {
  const std::int64_t n = GetParam() == 0 ? 0 : draw(1, 2000);
  const Floats w = floats(n), g = floats(n, 0.1f), m = floats(n, 0.1f);
  Floats v = floats(n, 0.1f);
  for (float& value : v) value = std::abs(value);
  const AdamWStep step{.learning_rate = 3e-2,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .epsilon = 1e-8,
                       .weight_decay = 0.1,
                       .correction1 = 0.271,
                       .correction2 = 0.142625};
  Doubles weights(z(n)), first(z(n)), second(z(n)), plain(z(n)), moved(z(n)), velocity(z(n));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    first[i] = step.beta1 * d(m[i]) + (1 - step.beta1) * d(g[i]);
    second[i] = step.beta2 * d(v[i]) + (1 - step.beta2) * d(g[i]) * d(g[i]);
    weights[i] =
        d(w[i]) * (1 - step.learning_rate * step.weight_decay) -
        step.learning_rate * (first[i] / step.correction1) / (std::sqrt(second[i] / step.correction2) + step.epsilon);
    const double slope = d(g[i]) + 0.1 * d(w[i]);
    plain[i] = d(w[i]) - 0.5 * slope;
    velocity[i] = 0.9 * d(m[i]) + slope;
    moved[i] = d(w[i]) - 0.5 * (slope + 0.9 * velocity[i]);
  }
  expect({weights, first, second}, 1e-6, [&](Kernels& k, A& a) {
    float *const to = a.inout(w), *const to_first = a.inout(m), *const to_second = a.inout(v);
    k.adamw(to, a.in(g), to_first, to_second, n, step);
  });
  expect({plain}, 1e-6, [&](Kernels& k, A& a) {
    k.sgd(a.inout(w), a.in(g), nullptr, n, {.learning_rate = 0.5, .weight_decay = 0.1});
  });
  expect({moved, velocity}, 1e-6, [&](Kernels& k, A& a) {
    float *const to = a.inout(w), *const to_velocity = a.inout(m);
    k.sgd(to, a.in(g), to_velocity, n, {.learning_rate = 0.5, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  });
  const Doubles squares(z(draw(0, 40)), 0.25);
  const double norm = std::sqrt(0.25 * static_cast<double>(squares.size()));
  expect({{norm}, {norm > 1.5 ? 1.5 / norm : 1}}, 1e-7, [&](Kernels& k, A& a) {
    double* const to = a.out<double>(1);
    k.clip_factor(to, a.out<float>(1), a.in(squares), static_cast<std::int64_t>(squares.size()), 1.5);
  });
}

INSTANTIATE_TEST_SUITE_P(Drawn, Formula, ::testing::Range(0, 6));

}  // namespace
}  // namespace lockstep::formulas_test
