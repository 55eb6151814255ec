// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <array>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "runtime/tensor/findings.h"
#include "tests/unit/tensor/cuda/both.h"

// Each operation of a GPU beside the CPU's. The CPU's own are held to formulas in double by tests/unit/tensor/cpu.
namespace lockstep::kernels_test {
namespace {

using testing::expect_alike;
using testing::gpu_kernels;
using testing::random_floats;
using testing::random_indices;
using testing::wait_for_gpu;
using A = testing::Arrays;
using K = Kernels;

// compute-sanitizer makes each a hundred times as slow: then the first of these.
template <typename T>
std::vector<T> all_or_first(std::vector<T> sizes) {
  if (std::getenv("LOCKSTEP_TEST_FEW_SIZES") != nullptr) sizes.resize(3);
  return sizes;
}

// Around the widths of what a thread, a warp and a block take, and a few that somebody drew.
const std::vector<std::int64_t> kCounts = [] {
  std::vector<std::int64_t> counts{0, 31, 1023, 1, 3, 4, 257, 20001};
  Generator generator(2026);
  for (int i = 0; i < 4; ++i) counts.push_back(static_cast<std::int64_t>(generator.below(10000)));
  return all_or_first(counts);
}();
struct Matrix {
  std::int64_t rows, columns;
};
const std::vector<Matrix> kShapes = [] {
  std::vector<Matrix> shapes{{0, 5},  {65, 129}, {33, 31}, {5, 0},   {1, 1},
                             {1, 70}, {70, 1},   {64, 64}, {3, 600}, {200, 7}};
  Generator generator(2027);
  const auto draw = [&] { return static_cast<std::int64_t>(1 + generator.below(90)); };
  for (int i = 0; i < 5; ++i) shapes.push_back({draw(), draw()});
  return all_or_first(shapes);
}();

std::string text_of(std::int64_t rows, std::int64_t columns, bool add) {
  return std::to_string(rows) + " x " + std::to_string(columns) + (add ? ", added" : "");
}

TEST(Elementwise, IsTheCpus) {
  for (const std::int64_t n : kCounts) {
    const auto x = random_floats(n, 1, 4), y = random_floats(n, 2, 4);
    expect_alike({0}, [&](K& k, A& a) { k.fill(a.out<float>(n), 2.5f, n); });
    expect_alike({0}, [&](K& k, A& a) { k.relu(a.out<float>(n), a.in(x), n); });
    expect_alike({3e-7}, [&](K& k, A& a) { k.tanh(a.out<float>(n), a.in(x), n); });
    expect_alike({1e-6}, [&](K& k, A& a) { k.gelu(a.out<float>(n), a.in(x), n); });
    expect_alike({0}, [&](K& k, A& a) { k.scale_by(a.inout(x), a.in(std::vector<float>{0.25f}), n); });
    expect_alike({0}, [&](K& k, A& a) { k.scale_by(a.inout(x), a.in(std::vector<float>{1.0f}), n); });
    for (const bool add : {false, true}) {
      // The CPU's are compiled with fused multiply-add.
      expect_alike({0}, [&](K& k, A& a) { k.add(a.into(n, add), a.in(x), a.in(y), n); });
      expect_alike({add ? 2e-7 : 0}, [&](K& k, A& a) { k.multiply(a.into(n, add), a.in(x), a.in(y), n); });
      expect_alike({add ? 2e-7 : 0}, [&](K& k, A& a) { k.scale(a.into(n, add), a.in(x), 0.3f, n); });
      expect_alike({0}, [&](K& k, A& a) { k.relu_backward(a.into(n, add), a.in(x), a.in(y), n); });
      expect_alike({1e-6}, [&](K& k, A& a) { k.tanh_backward(a.into(n, add), a.in(x), a.in(y), n); });
      expect_alike({2e-6}, [&](K& k, A& a) { k.gelu_backward(a.into(n, add), a.in(x), a.in(y), n); });
      expect_alike({0}, [&](K& k, A& a) { k.expand(a.into(n, add), a.in(std::vector<float>{3.0f}), 0.5f, n); });
    }
  }
}

TEST(Elementwise, MayWriteOverAnInput) {
  const auto x = random_floats(1000, 1), y = random_floats(1000, 2);
  expect_alike({0}, [&](K& k, A& a) {
    float* const both = a.inout(x);
    k.add({both, false}, both, a.in(y), 1000);
    k.relu(both, both, 1000);
  });
}

TEST(Elementwise, NanIsNeverHidden) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
  const std::vector<float> x{nan, infinite, -infinite, 0.0f, -0.0f, 1e-40f, 3e38f, -3e38f}, ones(8, 1.0f);
  expect_alike({1e-6}, [&](K& k, A& a) { k.relu(a.out<float>(8), a.in(x), 8); });
  expect_alike({1e-6}, [&](K& k, A& a) { k.tanh(a.out<float>(8), a.in(x), 8); });
  expect_alike({1e-6}, [&](K& k, A& a) { k.gelu(a.out<float>(8), a.in(x), 8); });
  expect_alike({1e-6}, [&](K& k, A& a) { k.relu_backward(a.into(8, false), a.in(x), a.in(ones), 8); });
  expect_alike({1e-6}, [&](K& k, A& a) { k.gelu_backward(a.into(8, false), a.in(x), a.in(ones), 8); });
}

TEST(Rows, AreTheCpus) {
  for (const Matrix& s : kShapes) {
    const std::int64_t r = s.rows, c = s.columns, n = r * c;
    const auto x = random_floats(n, 1), row = random_floats(c, 2);
    expect_alike({0}, [&](K& k, A& a) { k.add_row(a.out<float>(n), a.in(x), a.in(row), r, c); });
    for (const bool add : {false, true}) {
      const std::string where = text_of(r, c, add);
      expect_alike(
          {0}, [&](K& k, A& a) { k.transpose(a.into(n, add), a.in(x), r, c); }, where);
      expect_alike(
          {2e-6}, [&](K& k, A& a) { k.sum_rows(a.into(c, add), a.in(x), r, c); }, where);
    }
  }
}

TEST(Sums, AreTheCpus) {
  for (const std::int64_t n : all_or_first<std::int64_t>({0, 8193, 100, 1, 8192, 100000})) {
    const auto x = random_floats(n, 1), y = random_floats(n, 2);
    for (const bool add : {false, true}) {
      expect_alike({1e-6}, [&](K& k, A& a) { k.sum(a.into(1, add), a.in(x), 0.5f, n); });
    }
    expect_alike({-1e-13}, [&](K& k, A& a) { k.sum_squares(a.out<double>(1), a.in(x), n); });
    expect_alike({1e-6}, [&](K& k, A& a) { k.mse(a.out<float>(1), a.in(x), a.in(y), n); });
    const std::vector<float> dloss{0.7f};
    for (const bool add : {false, true}) {
      expect_alike({2e-7}, [&](K& k, A& a) { k.mse_backward(a.into(n, add), a.in(dloss), a.in(x), a.in(y), -1, n); });
    }
  }
}

TEST(LayerNorm, IsTheCpus) {
  for (const Matrix& s : kShapes) {
    const std::int64_t r = s.rows, c = s.columns, n = r * c;
    if (c == 0) continue;
    const LayerNormShape shape{.rows = r, .columns = c};
    auto x = random_floats(n, 1);
    for (float& value : x) value += 100;  // an offset in common
    const auto dy = random_floats(n, 2), gain = random_floats(c, 3), bias = random_floats(c, 4);
    expect_alike(
        {1e-5, -1e-12, 1e-5},
        [&](K& k, A& a) {
          k.layer_norm(a.out<float>(n), a.out<double>(r), a.out<float>(r), a.in(x), a.in(gain), a.in(bias), shape);
        },
        text_of(r, c, false));
    std::vector<float> out(x.size()), rstd(static_cast<std::size_t>(r));
    std::vector<double> mean(static_cast<std::size_t>(r));
    cpu_kernels().layer_norm(out.data(), mean.data(), rstd.data(), x.data(), gain.data(), bias.data(), shape);
    for (const bool add : {false, true}) {
      expect_alike(
          {1e-4, 1e-4, 1e-5},
          [&](K& k, A& a) {
            const Into dx = a.into(n, add), dgain = a.into(c, add), dbias = a.into(c, add);
            k.layer_norm_backward(dx, dgain, dbias, a.in(dy), a.in(x), a.in(mean), a.in(rstd), a.in(gain), shape);
          },
          text_of(r, c, add));
    }
    expect_alike({1e-4}, [&](K& k, A& a) {
      k.layer_norm_backward(a.into(n, false), {}, {}, a.in(dy), a.in(x), a.in(mean), a.in(rstd), a.in(gain), shape);
    });
  }
}

TEST(Embedding, HasTheBitsOfTheCpu) {
  struct Case {
    std::int64_t count, rows, columns;
  };
  for (const Case& s : {Case{0, 5, 3}, {1, 1, 1}, {7, 5, 3}, {300, 20, 5}, {40, 1000, 300}, {2500, 3, 2}}) {
    const std::int64_t n = s.count, r = s.rows, c = s.columns;
    const auto table = random_floats(r * c, 1), dy = random_floats(n * c, 2);
    const auto indices = random_indices(n, 3, r);
    expect_alike({0}, [&](K& k, A& a) { k.embedding(a.out<float>(n * c), a.in(table), a.in(indices), n, r, c); });
    for (const bool add : {false, true}) {
      expect_alike({0},
                   [&](K& k, A& a) { k.embedding_backward(a.into(r * c, add), a.in(dy), a.in(indices), n, r, c); });
    }
  }
}

TEST(Dropout, HasTheMaskOfTheCpu) {
  struct Case {
    std::int64_t samples, elements;
  };
  for (const auto& [samples, elements] : {Case{0, 5}, {1, 1}, {3, 64}, {2, 65}, {5, 1000}}) {
    const std::int64_t s = samples, e = elements, n = s * e;
    const auto x = random_floats(n, 1);
    auto ids = random_indices(s, 2, 1000);
    if (!ids.empty()) ids[0] = (std::int64_t{1} << 40) + 3;
    const RandomKey key{.seed = 5, .layer = 77, .step = 3};
    std::vector<std::uint8_t> mask(x.size());
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0 ? 1 : 0;
    for (const float keep : {0.1f, 0.8f, 1.0f}) {
      expect_alike({0, 0}, [&](K& k, A& a) {
        k.dropout(a.out<float>(n), a.out<std::uint8_t>(n), a.in(x), key, a.in(ids), s, e, keep);
      });
      for (const bool add : {false, true}) {
        expect_alike({add ? 2e-7 : 0},
                     [&](K& k, A& a) { k.dropout_backward(a.into(n, add), a.in(x), a.in(mask), keep, n); });
      }
    }
  }
}

TEST(CrossEntropy, IsTheCpus) {
  constexpr std::int64_t kIgnore = -100;
  for (const Matrix& s : kShapes) {
    const std::int64_t r = s.rows, c = s.columns, n = r * c;
    if (c == 0) continue;
    const auto logits = random_floats(n, 1, 10);
    auto targets = random_indices(r, 2, c);
    for (std::size_t i = 0; i < targets.size(); i += 3) targets[i] = kIgnore;
    std::vector<float> largest(targets.size()), sums(targets.size());
    std::int64_t counted = 0;
    float loss = 0;
    cpu_kernels().cross_entropy(&loss, &counted, largest.data(), sums.data(), logits.data(), targets.data(), r, c,
                                kIgnore);
    expect_alike(
        {1e-6, 0, 0, 2e-6},
        [&](K& k, A& a) {
          k.cross_entropy(a.out<float>(1), a.out<std::int64_t>(1), a.out<float>(r), a.out<float>(r), a.in(logits),
                          a.in(targets), r, c, kIgnore);
        },
        text_of(r, c, false));
    for (const bool add : {false, true}) {
      expect_alike(
          {1e-6},
          [&](K& k, A& a) {
            k.cross_entropy_backward(a.into(n, add), a.in(std::vector<float>{0.7f}),
                                     a.in(std::vector<std::int64_t>{counted}), a.in(largest), a.in(sums), a.in(logits),
                                     a.in(targets), r, c, kIgnore);
          },
          text_of(r, c, add));
    }
  }
}

// Each term is of the size of the others, so that the rounding of each shows.
TEST(Optimizers, HaveTheBitsOfTheCpu) {
  for (const std::int64_t n : kCounts) {
    const auto weights = random_floats(n, 1, 1e-2f), gradients = random_floats(n, 2, 1e-1f);
    const auto moments = random_floats(n, 3, 1e-2f);
    auto squares = random_floats(n, 4, 1e-3f);
    for (float& value : squares) value = std::abs(value);
    const AdamWStep step{.learning_rate = 3e-2,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .epsilon = 1e-8,
                         .weight_decay = 0.1,
                         .correction1 = 0.271,
                         .correction2 = 0.142625};
    expect_alike({0, 0, 0}, [&](K& k, A& a) {
      float *const w = a.inout(weights), *const m = a.inout(moments), *const v = a.inout(squares);
      k.adamw(w, a.in(gradients), m, v, n, step);
    });
    for (const double momentum : {0.0, 0.9}) {
      for (const bool nesterov : {false, true}) {
        const SgdStep sgd{.learning_rate = 0.01, .momentum = momentum, .weight_decay = 0.1, .nesterov = nesterov};
        expect_alike({0, 0}, [&](K& k, A& a) {
          float *const w = a.inout(weights), *const v = a.inout(moments);
          k.sgd(w, a.in(gradients), v, n, sgd);
        });
      }
    }
  }
}

void expect_product(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t inner, std::int64_t gap, bool add) {
  const std::int64_t lda = (ta ? m : inner) + gap, ldb = (tb ? inner : n) + gap, ldc = n + gap;
  const auto x = random_floats((ta ? inner : m) * lda, 1), y = random_floats((tb ? n : inner) * ldb, 2);
  const auto before = random_floats(m * ldc, 3);
  expect_alike({1e-5}, [&](K& k, A& a) {
    // What is between the rows of C stays.
    k.gemm({.rows = m,
            .columns = n,
            .inner = inner,
            .alpha = 0.5f,
            .a = {.data = a.in(x), .stride = lda, .transposed = ta},
            .b = {.data = a.in(y), .stride = ldb, .transposed = tb},
            .c = {a.inout(before), add},
            .ldc = ldc});
  });
}

TEST(Gemm, IsTheCpus) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const bool add : {false, true}) {
        for (const std::array<std::int64_t, 3>& s :
             {std::array<std::int64_t, 3>{1, 1, 1}, {0, 3, 2}, {3, 0, 2}, {3, 2, 0}, {5, 2, 5}, {17, 33, 9}}) {
          expect_product(ta, tb, s[0], s[1], s[2], 0, add);
          expect_product(ta, tb, s[0], s[1], s[2], 3, add);
        }
        Generator generator(2028);
        const auto draw = [&] { return static_cast<std::int64_t>(1 + generator.below(40)); };
        for (int i = 0; i < 5; ++i) expect_product(ta, tb, draw(), draw(), draw(), draw(), add);
      }
    }
  }
}

void expect_attention_of(const AttentionShape& shape, std::initializer_list<bool> adds) {
  const std::int64_t rows = shape.batch * shape.time, channels = shape.heads * shape.head_size;
  const std::int64_t squares = shape.batch * shape.heads * shape.time * shape.time;
  const auto qkv = random_floats(rows * 3 * channels, 1, 2), dout = random_floats(rows * channels, 2);
  expect_alike({1e-5, 1e-5}, [&](K& k, A& a) {
    k.attention(a.out<float>(rows * channels), a.out<float>(squares), a.in(qkv), shape);
  });
  std::vector<float> out(dout.size()), weights(static_cast<std::size_t>(squares));
  cpu_kernels().attention(out.data(), weights.data(), qkv.data(), shape);
  for (const bool add : adds) {
    expect_alike({1e-5}, [&](K& k, A& a) {
      k.attention_backward(a.into(rows * 3 * channels, add), a.in(dout), a.in(weights), a.in(qkv), shape);
    });
  }
}

TEST(Attention, IsTheCpus) {
  for (const AttentionShape& shape :
       {AttentionShape{1, 1, 1, 1}, {2, 5, 3, 4}, {1, 33, 2, 8}, {3, 0, 2, 4}, {0, 3, 2, 4}}) {
    expect_attention_of(shape, {false, true});
  }
}

TEST(Attention, MayHaveMoreMatricesThanABatchOfProducts) { expect_attention_of({2, 1, 2100, 1}, {true}); }

TEST(Clip, IsTheCpus) {
  for (const std::vector<double>& squares : {std::vector<double>{1, 4, 0.25}, {}}) {
    for (const double max_norm : {0.5, 1e6, std::numeric_limits<double>::infinity()}) {
      expect_alike({-1e-15, 1e-7}, [&](K& k, A& a) {
        double* const norm = a.out<double>(1);
        k.clip_factor(norm, a.out<float>(1), a.in(squares), std::ssize(squares), max_norm);
      });
    }
  }
}

std::string finding_text() {
  wait_for_gpu();
  try {
    throw_findings(gpu_kernels());
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Findings, NameTheFirstBadIndex) {
  A arrays(gpu_kernels(), 0);
  std::vector<std::int64_t> indices(1000, 3);
  gpu_kernels().check_indices(IndexedBy::embedding, arrays.in(indices), 1000, 4, -1);
  EXPECT_EQ(finding_text(), "none");
  indices[700] = 4;
  indices[400] = -7;
  gpu_kernels().check_indices(IndexedBy::embedding, arrays.in(indices), 1000, 4, -1);
  indices[2] = 9;  // of a later call: the first one stands
  gpu_kernels().check_indices(IndexedBy::cross_entropy, arrays.in(indices), 1000, 4, -7);
  EXPECT_THAT(finding_text(), ::testing::HasSubstr("embedding: index -7 at position 400 is not in [0, 4)"));
  EXPECT_EQ(finding_text(), "none");
  gpu_kernels().check_indices(IndexedBy::cross_entropy, arrays.in(indices), 1000, 4, -7);
  EXPECT_THAT(finding_text(),
              ::testing::HasSubstr("cross_entropy: target 9 of row 2 is not in [0, 4) and not ignore_index -7; correct "
                                   "the target, or give the model as many classes as the targets have"));
}

TEST(Findings, NameTheFirstNormThatIsNone) {
  A arrays(gpu_kernels(), 0);
  const double infinite = std::numeric_limits<double>::infinity();
  float* const factor = arrays.out<float>(1);
  gpu_kernels().clip_factor(arrays.out<double>(1), factor, arrays.in(std::vector<double>{1, 2, infinite, 4}), 4, 1.0);
  EXPECT_THAT(finding_text(),
              ::testing::HasSubstr("norm is inf; the first parameter with such a gradient is number 2"));
  float value = 1;
  device_runtime(DeviceKind::cuda).copy(&value, factor, sizeof value, gpu_kernels().stream());
  wait_for_gpu();
  EXPECT_EQ(value, 0);
}

// Nothing outside is read or written: the fake would say so. What is out of range is left out.
TEST(Findings, IndicesOutOfRangeAreLeftOut) {
  A arrays(gpu_kernels(), 1);
  const std::vector<std::int64_t> indices{2, -1, 5, std::int64_t{1} << 40};
  Kernels& k = gpu_kernels();
  const auto* const on_gpu = arrays.in(indices);
  k.embedding(arrays.out<float>(4 * 3), arrays.in(random_floats(5 * 3, 1)), on_gpu, 4, 5, 3);
  k.embedding_backward({arrays.out<float>(5 * 3), false}, arrays.in(random_floats(4 * 3, 2)), on_gpu, 4, 5, 3);
  auto* const on_gpu_counted = arrays.out<std::int64_t>(1);
  k.cross_entropy(arrays.out<float>(1), on_gpu_counted, arrays.out<float>(4), arrays.out<float>(4),
                  arrays.in(random_floats(4 * 5, 3)), on_gpu, 4, 5, -1);
  const auto results = arrays.results();
  const auto floats = [&](std::size_t i) {
    std::vector<float> values(results[i].size() / sizeof(float));
    std::memcpy(values.data(), results[i].data(), results[i].size());
    return values;
  };
  const auto table = random_floats(5 * 3, 1), dy = random_floats(4 * 3, 2);
  EXPECT_THAT(floats(0), ::testing::ElementsAre(table[6], table[7], table[8], 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(floats(1), ::testing::ElementsAre(0, 0, 0, 0, 0, 0, dy[0], dy[1], dy[2], 0, 0, 0, 0, 0, 0));
  std::int64_t counted = 0;
  std::memcpy(&counted, results[2].data(), sizeof counted);
  EXPECT_EQ(counted, 1);
}

}  // namespace
}  // namespace lockstep::kernels_test
