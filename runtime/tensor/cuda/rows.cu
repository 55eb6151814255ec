// SPDX-License-Identifier: Apache-2.0
// Sums are in double and in two launches: of parts whose size is fixed, then of the parts, so that their order depends
// on extents alone.
#include <cmath>

#include "runtime/tensor/cuda/cuda_kernels.h"
#include "runtime/tensor/cuda/launch.cuh"
#include "runtime/tensor/cuda/sums.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kTileRows = kThreads / kTile;

// A tile goes through shared memory, so that both sides are read and written along their rows. Its columns are one more
// than a warp's, so that the threads of a warp meet all of its banks.
__global__ void transpose_kernel(Span<float> out, bool add, Span<const float> a, std::int64_t rows,
                                 std::int64_t columns) {
  LOCKSTEP_SHARED(float, tile, kTile*(kTile + 1));
  const std::int64_t across = (columns + kTile - 1) / kTile;
  const int x = thread_index() % kTile, y = thread_index() / kTile;
  for_each_block(across * ((rows + kTile - 1) / kTile), [&](std::int64_t i) {
    const std::int64_t row = i / across * kTile, column = i % across * kTile;
    for (int k = y; k < kTile; k += kTileRows) {
      if (row + k < rows && column + x < columns) tile.set(k * (kTile + 1) + x, a[(row + k) * columns + column + x]);
    }
    barrier();
    for (int k = y; k < kTile; k += kTileRows) {
      if (column + k < columns && row + x < rows) {
        put(out, add, (column + k) * rows + row + x, tile[x * (kTile + 1) + k]);
      }
    }
    barrier();  // the next tile
  });
}

__global__ void add_row_kernel(Span<float> out, Span<const float> a, Span<const float> row, std::int64_t rows) {
  const std::int64_t columns = row.count;
  for_each_block(rows, [&](std::int64_t r) {
    for_each_in_block(
        columns, [&](std::int64_t c) { return a[r * columns + c] + row[c]; },
        [&](std::int64_t c, float sum) { out.set(r * columns + c, sum); });
  });
}

__global__ void sum_rows_parts(Span<double> parts, Span<const float> a, std::int64_t rows, std::int64_t columns) {
  sum_columns_in_parts(parts, rows, columns, [&](std::int64_t i, std::int64_t) { return static_cast<double>(a[i]); });
}

// A block has kColumns columns. As many threads have every kSlices-th part of each, and then one has their sums.
constexpr int kColumns = 8;
constexpr int kSlices = kThreads / kColumns;
__global__ void sum_column_parts_kernel(Span<float> out, bool add, Span<const double> parts, std::int64_t number) {
  LOCKSTEP_SHARED(double, sums, kThreads);
  const std::int64_t columns = out.count;
  const int slice = thread_index() / kColumns;
  for_each_block((columns + kColumns - 1) / kColumns, [&](std::int64_t i) {
    const std::int64_t c = i * kColumns + thread_index() % kColumns;
    double sum = 0;
    if (c < columns) {
      for_each_of(
          slice, kSlices, number, [&](std::int64_t p) { return parts[p * columns + c]; },
          [&](std::int64_t, double part) { sum += part; });
    }
    sums.set(thread_index(), sum);
    barrier();
    if (slice == 0 && c < columns) {
      double total = 0;
      for (int k = 0; k < kSlices; ++k) total += sums[k * kColumns + thread_index()];
      out.set(c, static_cast<float>((add ? static_cast<double>(out[c]) : 0.0) + total));
    }
    barrier();  // the next of them
  });
}

__global__ void sum_kernel(Span<double> parts, Span<const float> a) {
  sum_in_parts(parts, a.count, [&](std::int64_t i) { return static_cast<double>(a[i]); });
}

__global__ void sum_squares_kernel(Span<double> parts, Span<const float> a) {
  sum_in_parts(parts, a.count, [&](std::int64_t i) { return static_cast<double>(a[i]) * static_cast<double>(a[i]); });
}

__global__ void sum_parts_kernel(Span<float> out, bool add, Span<const double> parts, double factor, double divisor) {
  const double total = sum_in_block<double>(parts.count, [&](std::int64_t i) { return parts[i]; });
  if (thread_index() != 0) return;
  out.set(0, static_cast<float>((add ? static_cast<double>(out[0]) : 0.0) + factor * total / divisor));
}

__global__ void sum_parts_in_double_kernel(Span<double> out, Span<const double> parts) {
  const double total = sum_in_block<double>(parts.count, [&](std::int64_t i) { return parts[i]; });
  if (thread_index() == 0) out.set(0, total);
}

// By one thread, in the order of the parameters, as on the CPU: there are as many as a model has.
__global__ void clip_factor_kernel(Span<double> norm, Span<float> factor, Span<const double> squares, double max_norm,
                                   Span<Finding> place, Span<std::int64_t> is_there) {
  if (thread_index() != 0) return;
  double total = 0;
  for (std::int64_t i = 0; i < squares.count; ++i) total += squares[i];
  const double root = sqrt(total);
  norm.set(0, root);
  if (!isfinite(root) && isfinite(max_norm)) {
    std::int64_t first = 0;
    while (first + 1 < squares.count && isfinite(squares[first])) ++first;
    factor.set(0, 0.0f);
    Finding finding;
    finding.kind = Finding::Kind::bad_norm;
    finding.position = first;
    finding.norm = root;
    report(place, is_there, finding);
    return;
  }
  factor.set(0, root > max_norm ? static_cast<float>(max_norm / root) : 1.0f);
}

const Kernel kTranspose("transpose", transpose_kernel);
const Kernel kAddRow("add_row", add_row_kernel);
const Kernel kSumRows("sum_rows", sum_rows_parts);
const Kernel kSumColumnParts("sum_column_parts", sum_column_parts_kernel);
const Kernel kSum("sum", sum_kernel);
const Kernel kSumSquares("sum_squares", sum_squares_kernel);
const Kernel kSumParts("sum_parts", sum_parts_kernel);
const Kernel kSumPartsInDouble("sum_parts_in_double", sum_parts_in_double_kernel);
const Kernel kClipFactor("clip_factor", clip_factor_kernel, kWarp);

}  // namespace

void sum_column_parts(const Launch& launch, Into out, const double* parts, std::int64_t number, std::int64_t columns) {
  launch(kSumColumnParts, parts_of(columns, kColumns), writes(out.data, columns), out.add,
         reads(parts, number * columns), number);
}

void sum_parts(const Launch& launch, Into out, const double* parts, std::int64_t number, double factor,
               double divisor) {
  launch(kSumParts, {1, number}, writes(out.data, 1), out.add, reads(parts, number), factor, divisor);
}

void CudaKernels::transpose(Into out, const float* a, std::int64_t rows, std::int64_t columns) {
  const std::int64_t count = rows * columns;
  if (count == 0) return;
  (*launch_)(kTranspose, parts_of(rows, kTile) * parts_of(columns, kTile), writes(out.data, count), out.add,
             reads(a, count), rows, columns);
}

void CudaKernels::add_row(float* out, const float* a, const float* row, std::int64_t rows, std::int64_t columns) {
  const std::int64_t count = rows * columns;
  if (count == 0) return;
  (*launch_)(kAddRow, rows_of(rows, columns), writes(out, count), reads(a, count), reads(row, columns), rows);
}

void CudaKernels::sum_rows(Into out, const float* a, std::int64_t rows, std::int64_t columns) {
  if (columns == 0) return;
  const std::int64_t number = parts_of(rows, kRowsOfPart);
  auto* const parts = scratch<double>(number * columns);
  if (number > 0) {
    (*launch_)(kSumRows, parts_of(number * columns, kThreads), writes(parts, number * columns),
               reads(a, rows * columns), rows, columns);
  }
  sum_column_parts(*launch_, out, parts, number, columns);
}

void CudaKernels::sum(Into out, const float* a, float alpha, std::int64_t count) {
  const std::int64_t number = parts_of(count, kPart);
  auto* const parts = scratch<double>(number);
  if (number > 0) (*launch_)(kSum, {number, count}, writes(parts, number), reads(a, count));
  sum_parts(*launch_, out, parts, number, static_cast<double>(alpha), 1);
}

void CudaKernels::sum_squares(double* out, const float* a, std::int64_t count) {
  const std::int64_t number = parts_of(count, kPart);
  auto* const parts = scratch<double>(number);
  if (number > 0) (*launch_)(kSumSquares, {number, count}, writes(parts, number), reads(a, count));
  (*launch_)(kSumPartsInDouble, {1, number}, writes(out, 1), reads<double>(parts, number));
}

void CudaKernels::clip_factor(double* norm, float* factor, const double* squares, std::int64_t count, double max_norm) {
  (*launch_)(kClipFactor, 1, writes(norm, 1), writes(factor, 1), reads(squares, count), max_norm,
             writes(&finding_->finding, 1), writes(&finding_->is_there, 1));
}

}  // namespace lockstep::cuda
