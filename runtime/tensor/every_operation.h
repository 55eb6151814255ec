// SPDX-License-Identifier: Apache-2.0
// One call of every operation of kernels, on a little data: what kernel_trial.h runs on two devices and compares.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/base/random.h"
#include "runtime/tensor/kernels.h"

namespace lockstep {

struct OperationCall {
  const char* name;
  std::function<void()> run;
};

// In an order in which each finds what it reads; those with Into both ways. `arrays` has memory of the device, which
// lives as long as the calls:
//   const T* in(const std::vector<T>&)    holds these
//   T* inout(const std::vector<T>&)       the same, to be written over
//   T* out<T>(std::int64_t count)
template <typename Arrays>
std::vector<OperationCall> calls_of_every_operation(Kernels& k, Arrays& arrays) {
  constexpr std::int64_t kRows = 6, kColumns = 10, kCount = kRows * kColumns;
  std::uint64_t stream = 0;
  const auto floats = [&](std::int64_t count) {
    Generator generator(7, ++stream);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = 2 * generator.uniform() - 1;
    return values;
  };
  std::vector<std::int64_t> rows(kRows);
  Generator generator(8);
  for (std::int64_t& row : rows) row = static_cast<std::int64_t>(generator.below(kRows));

  const float *const x = arrays.in(floats(kCount)), *const y = arrays.in(floats(kCount)),
                     *const row = arrays.in(floats(kColumns)), *const one = arrays.in(std::vector<float>{0.5f});
  const std::int64_t* const indices = arrays.in(rows);
  const auto into = [&](std::int64_t count, bool add) {
    return Into{add ? arrays.inout(floats(count)) : arrays.template out<float>(count), add};
  };
  const auto out = [&] { return arrays.template out<float>(kCount); };

  std::vector<OperationCall> calls;
  const auto call = [&](const char* name, auto body) { calls.push_back({name, std::move(body)}); };
  for (const bool add : {false, true}) {
    const auto to = [&] { return into(kCount, add); };
    call("transpose", [&k, x, o = to()] { k.transpose(o, x, kRows, kColumns); });
    call("add", [&k, x, y, o = to()] { k.add(o, x, y, kCount); });
    call("multiply", [&k, x, y, o = to()] { k.multiply(o, x, y, kCount); });
    call("scale", [&k, x, o = to()] { k.scale(o, x, 0.3f, kCount); });
    call("relu_backward", [&k, x, y, o = to()] { k.relu_backward(o, x, y, kCount); });
    call("tanh_backward", [&k, x, y, o = to()] { k.tanh_backward(o, x, y, kCount); });
    call("gelu_backward", [&k, x, y, o = to()] { k.gelu_backward(o, x, y, kCount); });
    call("sum_rows", [&k, x, o = into(kColumns, add)] { k.sum_rows(o, x, kRows, kColumns); });
    call("sum", [&k, x, o = into(1, add)] { k.sum(o, x, 0.5f, kCount); });
    call("expand", [&k, one, o = to()] { k.expand(o, one, 2, kCount); });
    call("embedding_backward",
         [&k, x, indices, o = to()] { k.embedding_backward(o, x, indices, kRows, kRows, kColumns); });
    call("mse_backward", [&k, one, x, y, o = to()] { k.mse_backward(o, one, x, y, 1, kCount); });
    call("gemm", [&k, x, y, o = into(kRows * kRows, add)] {
      k.gemm({.rows = kRows,
              .columns = kRows,
              .inner = kColumns,
              .a = {x, kColumns},
              .b = {.data = y, .stride = kColumns, .transposed = true},
              .c = o,
              .ldc = kRows});
    });
  }
  call("fill", [&k, o = out()] { k.fill(o, 3, kCount); });
  call("relu", [&k, x, o = out()] { k.relu(o, x, kCount); });
  call("tanh", [&k, x, o = out()] { k.tanh(o, x, kCount); });
  call("gelu", [&k, x, o = out()] { k.gelu(o, x, kCount); });
  call("add_row", [&k, x, row, o = out()] { k.add_row(o, x, row, kRows, kColumns); });
  call("sum_squares", [&k, x, o = arrays.template out<double>(1)] { k.sum_squares(o, x, kCount); });
  call("clip_factor",
       [&k, norm = arrays.template out<double>(1), factor = arrays.template out<float>(1),
        squares = arrays.in(std::vector<double>{1, 2})] { k.clip_factor(norm, factor, squares, 2, 0.5); });
  call("scale_by", [&k, one, o = arrays.inout(floats(kCount))] { k.scale_by(o, one, kCount); });

  const LayerNormShape shape{.rows = kRows, .columns = kColumns};
  double* const mean = arrays.template out<double>(kRows);
  float* const rstd = arrays.template out<float>(kRows);
  call("layer_norm", [&k, x, row, mean, rstd, shape, o = out()] { k.layer_norm(o, mean, rstd, x, row, row, shape); });
  call("layer_norm_backward",
       [&k, x, y, row, mean, rstd, shape, dx = into(kCount, true), dgain = into(kColumns, false),
        dbias = into(kColumns, true)] { k.layer_norm_backward(dx, dgain, dbias, y, x, mean, rstd, row, shape); });
  call("layer_norm_backward", [&k, x, y, row, mean, rstd, shape, dx = into(kCount, true)] {
    k.layer_norm_backward(dx, {}, {}, y, x, mean, rstd, row, shape);
  });

  call("check_indices", [&k, indices] { k.check_indices(IndexedBy::embedding, indices, kRows, kRows, -1); });
  call("embedding", [&k, x, indices, o = out()] { k.embedding(o, x, indices, kRows, kRows, kColumns); });

  const AttentionShape heads{.batch = 2, .time = 3, .heads = 2, .head_size = 5};
  const float* const qkv = arrays.in(floats(3 * kCount));
  float* const weights = arrays.template out<float>(2 * 2 * 9);
  call("attention", [&k, qkv, weights, heads, o = out()] { k.attention(o, weights, qkv, heads); });
  call("attention_backward",
       [&k, y, qkv, weights, heads, o = into(3 * kCount, true)] { k.attention_backward(o, y, weights, qkv, heads); });

  std::uint8_t* const mask = arrays.template out<std::uint8_t>(kCount);
  call("dropout", [&k, x, indices, mask, o = out()] {
    k.dropout(o, mask, x, {.seed = 1, .layer = 2, .step = 3}, indices, kRows, kColumns, 0.7f);
  });
  call("dropout_backward", [&k, x, mask, o = into(kCount, false)] { k.dropout_backward(o, x, mask, 0.7f, kCount); });

  std::int64_t* const counted = arrays.template out<std::int64_t>(1);
  float *const largest = arrays.template out<float>(kRows), *const sums = arrays.template out<float>(kRows);
  call("cross_entropy", [&k, x, indices, counted, largest, sums, loss = arrays.template out<float>(1)] {
    k.cross_entropy(loss, counted, largest, sums, x, indices, kRows, kColumns, -1);
  });
  call("cross_entropy_backward", [&k, x, one, indices, counted, largest, sums, o = into(kCount, false)] {
    k.cross_entropy_backward(o, one, counted, largest, sums, x, indices, kRows, kColumns, -1);
  });
  call("mse", [&k, x, y, loss = arrays.template out<float>(1)] { k.mse(loss, x, y, kCount); });

  std::vector<float> squares = floats(kCount);
  for (float& value : squares) value *= value;
  call("adamw", [&k, y, w = arrays.inout(floats(kCount)), m = arrays.inout(floats(kCount)), v = arrays.inout(squares)] {
    k.adamw(w, y, m, v, kCount, {.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8});
  });
  call("sgd", [&k, y, w = arrays.inout(floats(kCount)), v = arrays.inout(floats(kCount))] {
    k.sgd(w, y, v, kCount, {.learning_rate = 1e-3, .momentum = 0.9});
  });
  call("sgd", [&k, y, w = arrays.inout(floats(kCount))] { k.sgd(w, y, nullptr, kCount, {.learning_rate = 1e-3}); });
  return calls;
}

}  // namespace lockstep
