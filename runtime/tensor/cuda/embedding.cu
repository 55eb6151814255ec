// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/tensor/cuda/cuda_kernels.h"
#include "runtime/tensor/cuda/launch.cuh"

namespace lockstep::cuda {
namespace {

constexpr std::int64_t kNoPosition = std::int64_t{1} << 62;

// By one block: the first position is a minimum, and the word for it has one writer.
__global__ void check_indices_kernel(Span<const std::int64_t> indices, std::int64_t limit, std::int64_t ignore,
                                     IndexedBy what, Span<Finding> place, Span<std::int64_t> is_there) {
  std::int64_t first = kNoPosition;
  for_each_in_block(indices.count, [&](std::int64_t i) {
    const std::int64_t index = indices[i];
    if ((index < 0 || index >= limit) && index != ignore && i < first) first = i;
  });
  first = over_block(first, Smaller{});
  if (thread_index() != 0 || first == kNoPosition) return;
  Finding finding;
  finding.what = what;
  finding.position = first;
  finding.value = indices[first];
  finding.limit = limit;
  finding.ignore = ignore;
  report(place, is_there, finding);
}

__global__ void embedding_kernel(Span<float> out, Span<const float> table, Span<const std::int64_t> indices,
                                 std::int64_t rows, std::int64_t columns) {
  for_each_block(indices.count, [&](std::int64_t i) {
    const std::int64_t index = indices[i];
    const bool is_there = index >= 0 && index < rows;
    for_each_in_block(
        columns, [&](std::int64_t c) { return is_there ? table[index * columns + c] : 0.0f; },
        [&](std::int64_t c, float value) { out.set(i * columns + c, value); });
  });
}

// A block has the rows of the table whose number is its own modulo the number of blocks. It reads all indices, and adds
// what belongs to its rows in the order of the positions: that of the CPU, and so are the bits.
__global__ void embedding_backward_kernel(Span<float> dtable, Span<const float> dy, Span<const std::int64_t> indices,
                                          std::int64_t rows, std::int64_t columns) {
  constexpr int kAtOnce = 4, kWarps = kThreads / kWarp;
  LOCKSTEP_SHARED(unsigned, mine, kAtOnce* kWarps);
  for (std::int64_t begin = 0; begin < indices.count; begin += kAtOnce * kThreads) {
    std::int64_t found[kAtOnce];
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int64_t i = begin + k * kThreads + thread_index();
      found[k] = i < indices.count ? indices[i] : -1;
    }
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int64_t index = found[k];
      const bool is_mine =
          index >= 0 && index < rows &&
          static_cast<unsigned>(index) % static_cast<unsigned>(block_count()) == static_cast<unsigned>(block_index());
      const unsigned bits = ballot(is_mine);
      if (thread_index() % kWarp == 0) mine.set(k * kWarps + thread_index() / kWarp, bits);
    }
    barrier();
    for (int word = 0; word < kAtOnce * kWarps; ++word) {
      for (unsigned left = mine[word]; left != 0; left &= left - 1) {
        const std::int64_t position = begin + word * kWarp + first_bit(left), row = indices[position] * columns;
        for_each_in_block(
            columns, [&](std::int64_t c) { return dtable[row + c] + dy[position * columns + c]; },
            [&](std::int64_t c, float sum) { dtable.set(row + c, sum); });
      }
    }
    barrier();  // the next of them
  }
}

const Kernel kCheckIndices("check_indices", check_indices_kernel);
const Kernel kEmbedding("embedding", embedding_kernel);
const Kernel kEmbeddingBackward("embedding_backward", embedding_backward_kernel);

}  // namespace

void CudaKernels::check_indices(IndexedBy what, const std::int64_t* indices, std::int64_t count, std::int64_t limit,
                                std::int64_t ignore) {
  if (count == 0) return;
  (*launch_)(kCheckIndices, {1, count}, reads(indices, count), limit, ignore, what, writes(&finding_->finding, 1),
             writes(&finding_->is_there, 1));
}

void CudaKernels::embedding(float* out, const float* table, const std::int64_t* indices, std::int64_t count,
                            std::int64_t table_rows, std::int64_t columns) {
  if (count * columns == 0) return;
  (*launch_)(kEmbedding, rows_of(count, columns), writes(out, count * columns), reads(table, table_rows * columns),
             reads(indices, count), table_rows, columns);
}

void CudaKernels::embedding_backward(Into dtable, const float* dy, const std::int64_t* indices, std::int64_t count,
                                     std::int64_t table_rows, std::int64_t columns) {
  if (!dtable.add) {
    runtime_.zero(dtable.data, static_cast<std::size_t>(table_rows * columns) * sizeof(float), stream());
  }
  if (count * columns * table_rows == 0) return;
  constexpr std::int64_t kMostBlocks = 1024;
  (*launch_)(kEmbeddingBackward, std::min({count, table_rows, kMostBlocks}), writes(dtable.data, table_rows * columns),
             reads(dy, count * columns), reads(indices, count), table_rows, columns);
}

}  // namespace lockstep::cuda
