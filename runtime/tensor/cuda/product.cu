// SPDX-License-Identifier: Apache-2.0
// Matrix products where there is no cuBLASLt: by tiles in shared memory, each element's sum in the order of the inner
// extent. Right, the same bits on every GPU, and several times slower.
#include "runtime/tensor/cuda/cuda_kernels.h"
#include "runtime/tensor/cuda/launch.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kSide = 32;                     // of a tile
constexpr int kSideRows = kThreads / kSide;   // that the threads have at once
constexpr int kOfThread = kSide / kSideRows;  // elements of a tile that one thread adds up
constexpr int kPitch = kSide + 1;             // the threads of a warp meet all banks

struct Product {
  std::int64_t rows, columns, inner;
  std::int64_t a_row, a_inner;  // elements from one to the next
  std::int64_t b_inner, b_column;
  std::int64_t c_row;
  float alpha;
  bool add;
  Batch batch;
};

__global__ void product_kernel(Span<float> c, Span<const float> a, Span<const float> b, Product p) {
  LOCKSTEP_SHARED(float, of_a, kSide* kPitch);
  LOCKSTEP_SHARED(float, of_b, kSide* kPitch);
  const std::int64_t across = (p.columns + kSide - 1) / kSide, down = (p.rows + kSide - 1) / kSide;
  const int x = thread_index() % kSide, y = thread_index() / kSide;
  for_each_block(p.batch.count * across * down, [&](std::int64_t tile) {
    const std::int64_t matrix = tile / (across * down);
    const std::int64_t row = tile / across % down * kSide, column = tile % across * kSide;
    float sums[kOfThread] = {};
    for (std::int64_t from = 0; from < p.inner; from += kSide) {
      for (int k = y; k < kSide; k += kSideRows) {
        const bool has_a = row + k < p.rows && from + x < p.inner;
        const bool has_b = from + k < p.inner && column + x < p.columns;
        of_a.set(k * kPitch + x, has_a ? a[matrix * p.batch.a + (row + k) * p.a_row + (from + x) * p.a_inner] : 0.0f);
        of_b.set(k * kPitch + x,
                 has_b ? b[matrix * p.batch.b + (from + k) * p.b_inner + (column + x) * p.b_column] : 0.0f);
      }
      barrier();
      for (int i = 0; i < kSide; ++i) {
        const float factor = of_b[i * kPitch + x];
        for (int k = 0; k < kOfThread; ++k) sums[k] += of_a[(y + k * kSideRows) * kPitch + i] * factor;
      }
      barrier();  // the next tiles
    }
    for (int k = 0; k < kOfThread; ++k) {
      const std::int64_t r = row + y + k * kSideRows;
      if (r >= p.rows || column + x >= p.columns) continue;
      put(c, p.add, matrix * p.batch.c + r * p.c_row + column + x, p.alpha * sums[k]);
    }
  });
}

const Kernel kProduct("product", product_kernel);

// From the first element of the first matrix to the last of the last one.
std::int64_t extent(std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int64_t matrices,
                    std::int64_t step) {
  return (matrices - 1) * step + (rows - 1) * stride + columns;
}

}  // namespace

void CudaKernels::multiply_by_tiles(const Gemm& g, const Batch& batch) {
  const auto stored = [&](const MatrixView& view, std::int64_t rows, std::int64_t columns, std::int64_t step) {
    if (view.transposed) std::swap(rows, columns);
    return reads(view.data, extent(rows, columns, view.stride, batch.count, step));
  };
  const Product product{.rows = g.rows,
                        .columns = g.columns,
                        .inner = g.inner,
                        .a_row = g.a.transposed ? 1 : g.a.stride,
                        .a_inner = g.a.transposed ? g.a.stride : 1,
                        .b_inner = g.b.transposed ? 1 : g.b.stride,
                        .b_column = g.b.transposed ? g.b.stride : 1,
                        .c_row = g.ldc,
                        .alpha = g.alpha,
                        .add = g.c.add,
                        .batch = batch};
  (*launch_)(kProduct, batch.count * parts_of(g.rows, kSide) * parts_of(g.columns, kSide),
             writes(g.c.data, extent(g.rows, g.columns, g.ldc, batch.count, batch.c)),
             stored(g.a, g.rows, g.inner, batch.a), stored(g.b, g.inner, g.columns, batch.b), product);
}

}  // namespace lockstep::cuda
