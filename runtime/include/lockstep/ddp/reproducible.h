// SPDX-License-Identifier: Apache-2.0
// The same bits at any number of ranks: the result of a step depends on the program, not on the number of ranks that
// compute it.
//
//   const Reproducible same{.micro_batches = 8, .global_batch = 64};
//   data::GlobalBatchSampler sampler(n, rank, world, {.micro_batches = same.micro_batches});
//   DistributedDataParallel ddp(model, group, {.reproducible = same});
//   for (const auto& [x, y, ids] : loader) {
//     ddp.backward(x.size(0), [&](std::int64_t begin, std::int64_t end) {    // once for each micro-batch of this
//     rank's
//       return cross_entropy(ddp(rows(x, begin, end), ...), rows(y, begin, end));
//     });
//
// The rows of a step are cut into fixed micro-batches of equal size (data/sampler.h), and each has a forward and a
// backward of its own, on a fixed number of threads. The micro-batches' gradients are added up in one binary tree over
// all micro-batches: the left half of a node has the largest power of two of micro-batches below their number. A rank
// adds up the whole nodes of its run of micro-batches, and the ranks complete the tree. So 1, 2, 3 or 8 ranks, on one
// host or several, over any backend on the CPU, with any buckets, make the same weights to the last bit, and a run that
// was stopped resumes at another number of ranks as if it had not been. The same holds for ranks on GPUs of one kind,
// over NCCL, but not between these and CPUs, whose kernels are others, and not for a norm of gradients in shares
// (DdpOptions::shard) there.
//
// It needs rows that are dealt by samplers with the same `micro_batches`; gradients that are cleared before each step;
// randomness by sample (our layers) or by micro-batch (DdpOptions::seed with LibTorch). docs/REPRODUCIBLE.md lists the
// other rules for programs, and the effect of different processors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Equal on all ranks. More micro-batches are more, smaller backwards: as many as the most ranks that a run shall ever
// have.
struct Reproducible {
  int micro_batches = 0;          // at least as many as there are ranks; 0: as fast as may be
  std::int64_t global_batch = 0;  // rows of a full step, of all ranks together
  // Threads of one operation: another number of threads adds up a shared sum in another order.
  int threads = 1;

  bool is_on() const { return micro_batches != 0; }
};

// A forward and backward of a step: some of this rank's rows, perhaps none.
struct MicroBatch {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int index = 0;        // among all ranks' micro-batches
  bool is_last = true;  // this rank's last
  bool operator==(const MicroBatch&) const = default;
};

// The micro-batches that `rows` rows of a step are for `rank`, in order. One micro-batch of all rows if `reproducible`
// is not on. InvalidArgument if the rows are more than the rank's micro-batches hold, and for a number out of its
// range.
LOCKSTEP_API std::vector<MicroBatch> micro_batches_of_step(const Reproducible& reproducible, std::int64_t rows,
                                                           int rank, int world);

}  // namespace lockstep
