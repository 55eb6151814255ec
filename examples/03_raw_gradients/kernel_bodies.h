// SPDX-License-Identifier: Apache-2.0
// What one thread of each kernel does. Also compiled for the host, so that tests run it without a GPU.
#pragma once

#include <cmath>

#include "kernels.h"
#include "network.h"

#ifdef __CUDACC__
#define EXAMPLE_KERNEL_BODY __host__ __device__ inline
#else
#define EXAMPLE_KERNEL_BODY inline
#endif

EXAMPLE_KERNEL_BODY void forward_of_row(const Weights& weights, const Batch& batch, const Activations& to, int row) {
  float output = *weights.b2;
  for (int h = 0; h < kHidden; ++h) {
    float sum = weights.b1[h];
    for (int i = 0; i < kInputs; ++i) sum += batch.x[row * kInputs + i] * weights.w1[i * kHidden + h];
    const float t = tanhf(sum);
    to.hidden[row * kHidden + h] = t;
    output += t * weights.w2[h];
  }
  const float error = output - batch.y[row];
  to.d_output[row] = 2 * error;
  to.loss[row] += error * error;
}

// Hidden unit h; the first one's thread has the output's own bias too.
EXAMPLE_KERNEL_BODY void backward_of_output(const Batch& batch, const Activations& from, float* d_w2, float* d_b2,
                                            int h) {
  float to_unit = 0, to_bias = 0;
  for (int row = 0; row < batch.rows; ++row) {
    to_unit += from.d_output[row] * from.hidden[row * kHidden + h];
    to_bias += from.d_output[row];
  }
  d_w2[h] = to_unit;
  if (h == 0) *d_b2 = to_bias;
}

EXAMPLE_KERNEL_BODY void backward_of_hidden(const Weights& weights, const Batch& batch, const Activations& from,
                                            float* d_w1, float* d_b1, int h) {
  float to_bias = 0, to_inputs[kInputs] = {};
  for (int row = 0; row < batch.rows; ++row) {
    const float t = from.hidden[row * kHidden + h], d_sum = from.d_output[row] * weights.w2[h] * (1 - t * t);
    to_bias += d_sum;
    for (int i = 0; i < kInputs; ++i) to_inputs[i] += d_sum * batch.x[row * kInputs + i];
  }
  d_b1[h] = to_bias;
  for (int i = 0; i < kInputs; ++i) d_w1[i * kHidden + h] = to_inputs[i];
}
