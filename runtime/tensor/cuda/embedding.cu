// SPDX-License-Identifier: Apache-2.0
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
    for_each_in_block(columns,
                      [&](std::int64_t c) { out.set(i * columns + c, is_there ? table[index * columns + c] : 0.0f); });
  });
}

// A block has a position. It does nothing where an earlier position has the same index; else it adds all positions of
// that index, in their order: that of the CPU, and so are the bits. It takes count reads of indices for each position.
__global__ void embedding_backward_kernel(Span<float> dtable, Span<const float> dy, Span<const std::int64_t> indices,
                                          std::int64_t rows, std::int64_t columns) {
  LOCKSTEP_SHARED(unsigned, same, kThreads / kWarp);
  for_each_block(indices.count, [&](std::int64_t position) {
    const std::int64_t index = indices[position];
    if (index < 0 || index >= rows) return;  // all threads of the block, or none
    std::int64_t first = kNoPosition;
    for_each_in_block(position, [&](std::int64_t i) {
      if (indices[i] == index && i < first) first = i;
    });
    if (over_block(first, Smaller{}) != kNoPosition) return;
    for (std::int64_t begin = position; begin < indices.count; begin += kThreads) {
      const std::int64_t i = begin + thread_index();
      const unsigned bits = ballot(i < indices.count && indices[i] == index);
      if (thread_index() % kWarp == 0) same.set(thread_index() / kWarp, bits);
      barrier();
      for (int warp = 0; warp < kThreads / kWarp; ++warp) {
        for (unsigned left = same[warp]; left != 0; left &= left - 1) {
          const std::int64_t from = (begin + warp * kWarp + first_bit(left)) * columns;
          for_each_in_block(columns, [&](std::int64_t c) {
            dtable.set(index * columns + c, dtable[index * columns + c] + dy[from + c]);
          });
        }
      }
      barrier();  // the next of them
    }
  });
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
  (*launch_)(kEmbedding, {count, columns}, writes(out, count * columns), reads(table, table_rows * columns),
             reads(indices, count), table_rows, columns);
}

void CudaKernels::embedding_backward(Into dtable, const float* dy, const std::int64_t* indices, std::int64_t count,
                                     std::int64_t table_rows, std::int64_t columns) {
  if (!dtable.add) {
    runtime_.zero(dtable.data, static_cast<std::size_t>(table_rows * columns) * sizeof(float), stream());
  }
  if (count * columns * table_rows == 0) return;
  (*launch_)(kEmbeddingBackward, count, writes(dtable.data, table_rows * columns), reads(dy, count * columns),
             reads(indices, count), table_rows, columns);
}

}  // namespace lockstep::cuda
