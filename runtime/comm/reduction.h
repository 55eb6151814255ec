// SPDX-License-Identifier: Apache-2.0
// How the contributions of N ranks become one value: the arithmetic under every CPU backend.
//
// Values are combined in one fixed binary tree over the ranks, element by element, so the result depends on nothing
// but them: not on who computes it, on the block size or on the instruction set. For 5 ranks: ((0+1)+(2+3))+4.
// 16-bit floats are accumulated in float and rounded once. Integer sums and products wrap. A NaN on any rank gives NaN,
// in min and max too. The divisor (of avg: the ranks; of a weighted sum: the weights) is applied to the accumulated
// value, before it is rounded to the element type; integers truncate towards zero, and accumulate in 64 bits (uint8:
// 32).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

struct Reduction {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;  // avg accumulates like sum
  std::int64_t divisor = 1;     // 0: the sum itself
  std::int64_t unit = 1;        // of the divisor: values are divided by divisor / unit. At least 1; for integers 1
  std::int64_t scale = 1;       // a power of two that accumulated values are multiplied by, before; for integers 1
};

// Each destination's element i = tree over sources[rank][i]. A destination may be one of the sources, else it is apart
// from them; there is at least one. Any thread.
void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, std::size_t count);
inline void reduce(const Reduction& reduction, std::span<const std::byte* const> sources, std::byte* destination,
                   std::size_t count) {
  reduce(reduction, sources, std::span<std::byte* const>(&destination, 1), count);
}

// The same in two halves, for ranks on several hosts: reduce_to_partial() over the ranks of each host, then
// reduce_partials() over the hosts. A partial has the type that values accumulate in, where elements of their own type
// would be rounded or divided twice; else theirs. The bits are those of reduce() where the two trees are the one over
// all ranks.
DType dtype_of_partials(const Reduction& reduction);
void reduce_to_partial(const Reduction& reduction, std::span<const std::byte* const> sources, std::byte* partial,
                       std::size_t count);
void reduce_partials(const Reduction& reduction, std::span<const std::byte* const> partials,
                     std::span<std::byte* const> destinations, std::size_t count);

}  // namespace lockstep::comm
