// SPDX-License-Identifier: Apache-2.0
// A block has a row. The formulas are the CPU's (tensor/cpu/layer_norm.cc), and so is what is in double.
#include <cmath>

#include "runtime/tensor/cuda/cuda_kernels.h"
#include "runtime/tensor/cuda/launch.cuh"
#include "runtime/tensor/cuda/sums.cuh"

namespace lockstep::cuda {
namespace {

// x - mean in float: what the mean's nearest float leaves of it goes in a second difference.
struct Centred {
  float shift;
  float rest;
  __device__ explicit Centred(double mean)
      : shift(static_cast<float>(mean)), rest(static_cast<float>(mean - static_cast<double>(shift))) {}
  __device__ float operator()(float x) const { return (x - shift) - rest; }
};

__global__ void layer_norm_kernel(Span<float> out, Span<double> mean, Span<float> rstd, Span<const float> x,
                                  Span<const float> gain, Span<const float> bias, float epsilon) {
  const std::int64_t columns = gain.count;
  for_each_block(mean.count, [&](std::int64_t r) {
    const std::int64_t row = r * columns;
    const double m = sum_in_block<double>(columns, [&](std::int64_t c) { return static_cast<double>(x[row + c]); }) /
                     static_cast<double>(columns);
    const double squares = sum_in_block<double>(columns, [&](std::int64_t c) {
      const double difference = static_cast<double>(x[row + c]) - m;
      return difference * difference;
    });
    const double variance = squares / static_cast<double>(columns) + static_cast<double>(epsilon);
    const auto s = static_cast<float>(1.0 / sqrt(variance));
    const Centred centred(m);
    for_each_in_block(
        columns, [&](std::int64_t c) { return centred(x[row + c]) * s * gain[c] + bias[c]; },
        [&](std::int64_t c, float y) { out.set(row + c, y); });
    if (thread_index() == 0) {
      mean.set(r, m);
      rstd.set(r, s);
    }
  });
}

__global__ void layer_norm_gain_parts(Span<double> parts, Span<const float> dy, Span<const float> x,
                                      Span<const double> mean, Span<const float> rstd, std::int64_t columns) {
  sum_columns_in_parts(parts, mean.count, columns, [&](std::int64_t i, std::int64_t r) {
    return static_cast<double>(dy[i] * (Centred(mean[r])(x[i]) * rstd[r]));
  });
}

__global__ void layer_norm_backward_kernel(Span<float> dx, bool add, Span<const float> dy, Span<const float> x,
                                           Span<const double> mean, Span<const float> rstd, Span<const float> gain) {
  const std::int64_t columns = gain.count;
  for_each_block(mean.count, [&](std::int64_t r) {
    const std::int64_t row = r * columns;
    const Centred centred(mean[r]);
    const float s = rstd[r];
    const float h = sum_in_block<float>(columns, [&](std::int64_t c) { return dy[row + c] * gain[c]; }) /
                    static_cast<float>(columns);
    const float hn = sum_in_block<float>(
                         columns, [&](std::int64_t c) { return dy[row + c] * gain[c] * (centred(x[row + c]) * s); }) /
                     static_cast<float>(columns);
    for_each_in_block(
        columns,
        [&](std::int64_t c) {
          const float slope = s * (dy[row + c] * gain[c] - h - centred(x[row + c]) * s * hn);
          return add ? dx[row + c] + slope : slope;
        },
        [&](std::int64_t c, float slope) { dx.set(row + c, slope); });
  });
}

const Kernel kLayerNorm("layer_norm", layer_norm_kernel);
const Kernel kLayerNormGain("layer_norm_gain", layer_norm_gain_parts);
const Kernel kLayerNormBackward("layer_norm_backward", layer_norm_backward_kernel);

}  // namespace

void CudaKernels::layer_norm(float* out, double* mean, float* rstd, const float* x, const float* gain,
                             const float* bias, const LayerNormShape& shape) {
  const std::int64_t rows = shape.rows, columns = shape.columns;
  if (rows * columns == 0) return;
  (*launch_)(kLayerNorm, rows_of(rows, columns), writes(out, rows * columns), writes(mean, rows), writes(rstd, rows),
             reads(x, rows * columns), reads(gain, columns), reads(bias, columns), shape.epsilon);
}

void CudaKernels::layer_norm_backward(Into dx, Into dgain, Into dbias, const float* dy, const float* x,
                                      const double* mean, const float* rstd, const float* gain,
                                      const LayerNormShape& shape) {
  const std::int64_t rows = shape.rows, columns = shape.columns, count = rows * columns;
  if (columns == 0) return;
  // First what dx may overwrite: it may be dy.
  if (dbias.data != nullptr) sum_rows(dbias, dy, rows, columns);
  if (dgain.data != nullptr) {
    const std::int64_t number = parts_of(rows, kRowsOfPart);
    auto* const parts = scratch<double>(number * columns);
    if (number > 0) {
      (*launch_)(kLayerNormGain, parts_of(number * columns, kThreads), writes(parts, number * columns),
                 reads(dy, count), reads(x, count), reads(mean, rows), reads(rstd, rows), columns);
    }
    sum_column_parts(*launch_, dgain, parts, number, columns);
  }
  if (dx.data == nullptr || rows == 0) return;
  (*launch_)(kLayerNormBackward, rows_of(rows, columns), writes(dx.data, count), dx.add, reads(dy, count),
             reads(x, count), reads(mean, rows), reads(rstd, rows), reads(gain, columns));
}

}  // namespace lockstep::cuda
