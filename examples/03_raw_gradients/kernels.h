// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels: each puts its work into the stream and returns. All pointers are of the stream's device.
// Throws DeviceError if the launch fails.
#pragma once

#include <lockstep/device/stream.h>

struct Weights {
  const float *w1, *b1, *w2, *b2;
};
struct Batch {
  const float *x, *y;
  int rows;
};
// By row: kHidden numbers, one, and one to which this row's loss is added.
struct Activations {
  float *hidden, *d_output, *loss;
};

void forward(const Weights& weights, const Batch& batch, const Activations& activations, lockstep::StreamView stream);
// The sums of the rows' gradients.
void backward_output(const Batch& batch, const Activations& activations, float* d_w2, float* d_b2,
                     lockstep::StreamView stream);
void backward_hidden(const Weights& weights, const Batch& batch, const Activations& activations, float* d_w1,
                     float* d_b1, lockstep::StreamView stream);
// weights -= kRate * gradient.
void descend(float* weights, const float* gradient, int count, lockstep::StreamView stream);
