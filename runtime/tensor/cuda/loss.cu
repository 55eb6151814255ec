// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "runtime/tensor/cuda/cuda_kernels.h"
#include "runtime/tensor/cuda/launch.cuh"
#include "runtime/tensor/cuda/sums.cuh"

namespace lockstep::cuda {
namespace {

__device__ __forceinline__ bool counts(std::int64_t target, std::int64_t columns, std::int64_t ignore) {
  return target != ignore && target >= 0 && target < columns;
}

// A block has a row, and leaves its loss in `losses`.
__global__ void cross_entropy_rows(Span<double> losses, Span<float> largest, Span<float> sums, Span<const float> logits,
                                   Span<const std::int64_t> targets, std::int64_t columns, std::int64_t ignore) {
  for_each_block(targets.count, [&](std::int64_t r) {
    const std::int64_t row = r * columns, target = targets[r];
    float most = 0;
    double sum = 0;
    const bool is_counted = counts(target, columns, ignore);  // the same for all threads of the block
    if (is_counted) {
      most = logits[row];
      for_each_in_block(
          columns, [&](std::int64_t c) { return logits[row + c]; },
          [&](std::int64_t, float logit) { most = Larger{}(most, logit); });
      most = over_block(most, Larger{});
      sum = sum_in_block<double>(columns,
                                 [&](std::int64_t c) { return static_cast<double>(expf(logits[row + c] - most)); });
    }
    if (thread_index() != 0) return;
    // The largest and the sum stay apart, here and on the way back: in one float, log sum exp, a large offset of the
    // logits would leave no digits for what is between them.
    largest.set(r, most);
    sums.set(r, static_cast<float>(sum));
    losses.set(r, is_counted ? log(sum) - static_cast<double>(logits[row + target] - most) : 0.0);
  });
}

__global__ void cross_entropy_mean(Span<float> loss, Span<std::int64_t> counted, Span<const double> losses,
                                   Span<const std::int64_t> targets, std::int64_t columns, std::int64_t ignore) {
  const double total = sum_in_block<double>(losses.count, [&](std::int64_t r) { return losses[r]; });
  const auto rows = sum_in_block<std::int64_t>(targets.count, [&](std::int64_t r) {
    return static_cast<std::int64_t>(counts(targets[r], columns, ignore) ? 1 : 0);
  });
  if (thread_index() != 0) return;
  loss.set(0, rows == 0 ? 0.0f : static_cast<float>(total / static_cast<double>(rows)));
  counted.set(0, rows);
}

__global__ void cross_entropy_backward_kernel(Span<float> dlogits, bool add, Span<const float> dloss,
                                              Span<const std::int64_t> counted, Span<const float> largest,
                                              Span<const float> sums, Span<const float> logits,
                                              Span<const std::int64_t> targets, std::int64_t columns,
                                              std::int64_t ignore) {
  const float factor = counted[0] == 0 ? 0.0f : dloss[0] / static_cast<float>(counted[0]);
  for_each_block(targets.count, [&](std::int64_t r) {
    const std::int64_t row = r * columns, target = targets[r];
    if (!counts(target, columns, ignore)) {
      if (!add) for_each_in_block(columns, [&](std::int64_t c) { dlogits.set(row + c, 0.0f); });
      return;
    }
    const float most = largest[r], share = factor / sums[r];
    for_each_in_block(
        columns,
        [&](std::int64_t c) {
          const float value = share * expf(logits[row + c] - most);
          return add ? value + dlogits[row + c] : value;
        },
        [&](std::int64_t c, float value) { dlogits.set(row + c, c == target ? value - factor : value); });
  });
}

__global__ void mse_parts(Span<double> parts, Span<const float> a, Span<const float> b) {
  sum_in_parts(parts, a.count, [&](std::int64_t i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    return difference * difference;
  });
}

__global__ void mse_backward_kernel(Span<float> da, bool add, Span<const float> dloss, Span<const float> a,
                                    Span<const float> b, float sign) {
  const float factor = sign * 2.0f * dloss[0] / static_cast<float>(da.count);
  for_each(da.count, [&](std::int64_t i) { put(da, add, i, factor * (a[i] - b[i])); });
}

const Kernel kCrossEntropy("cross_entropy", cross_entropy_rows);
const Kernel kCrossEntropyMean("cross_entropy_mean", cross_entropy_mean);
const Kernel kCrossEntropyBackward("cross_entropy_backward", cross_entropy_backward_kernel);
const Kernel kMse("mse", mse_parts);
const Kernel kMseBackward("mse_backward", mse_backward_kernel);

}  // namespace

void CudaKernels::cross_entropy(float* loss, std::int64_t* counted, float* largest, float* sums, const float* logits,
                                const std::int64_t* targets, std::int64_t rows, std::int64_t columns,
                                std::int64_t ignore) {
  auto* const losses = scratch<double>(rows);
  if (rows > 0) {
    (*launch_)(kCrossEntropy, rows_of(rows, columns), writes(losses, rows), writes(largest, rows), writes(sums, rows),
               reads(logits, rows * columns), reads(targets, rows), columns, ignore);
  }
  (*launch_)(kCrossEntropyMean, {1, rows}, writes(loss, 1), writes(counted, 1), reads<double>(losses, rows),
             reads(targets, rows), columns, ignore);
}

void CudaKernels::cross_entropy_backward(Into dlogits, const float* dloss, const std::int64_t* counted,
                                         const float* largest, const float* sums, const float* logits,
                                         const std::int64_t* targets, std::int64_t rows, std::int64_t columns,
                                         std::int64_t ignore) {
  const std::int64_t count = rows * columns;
  if (count == 0) return;
  (*launch_)(kCrossEntropyBackward, rows_of(rows, columns), writes(dlogits.data, count), dlogits.add, reads(dloss, 1),
             reads(counted, 1), reads(largest, rows), reads(sums, rows), reads(logits, count), reads(targets, rows),
             columns, ignore);
}

void CudaKernels::mse(float* loss, const float* a, const float* b, std::int64_t count) {
  const std::int64_t number = parts_of(count, kPart);
  auto* const parts = scratch<double>(number);
  if (number > 0) (*launch_)(kMse, {number, count}, writes(parts, number), reads(a, count), reads(b, count));
  sum_parts(*launch_, {loss, false}, parts, number, 1, count == 0 ? 1.0 : static_cast<double>(count));
}

void CudaKernels::mse_backward(Into da, const float* dloss, const float* a, const float* b, float sign,
                               std::int64_t count) {
  if (count == 0) return;
  (*launch_)(kMseBackward, parts_of(count, kThreads), writes(da.data, count), da.add, reads(dloss, 1), reads(a, count),
             reads(b, count), sign);
}

}  // namespace lockstep::cuda
