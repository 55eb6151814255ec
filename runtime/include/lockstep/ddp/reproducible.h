// SPDX-License-Identifier: Apache-2.0
// Reproducible makes a step compute equal bits at any number of ranks.
//
//   data::DataLoader loader(dataset, *group, {.global_batch = 64, .micro_batches = 8});
//   DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 8, .global_batch = 64}});
//   for (const data::Batch& batch : loader) {
//     ddp.backward(batch, [&](const data::Batch& rows) { return cross_entropy(ddp(rows.x, rows.ids), rows.y); });
//     optimizer.step();
//     optimizer.zero_grad();
//   }
//
// A sampler with the option micro_batches cuts the rows of a step into fixed micro-batches of equal size
// (data/sampler.h): 64 rows are always 8 micro-batches, which 1 to 8 ranks share. Each micro-batch has its own forward
// and backward, on a fixed number of threads. One binary tree adds up the micro-batches' gradients: in a node of n
// micro-batches the left half has the largest power of two below n. A rank adds up the whole nodes of its
// micro-batches, and the ranks complete the tree.
//
// So runs with any number of ranks and hosts, any backend on the CPU and any buckets compute equal weights to the last
// bit. A stopped run resumes at another number of ranks with equal bits. Ranks on GPUs of one kind, over NCCL, also
// compute equal bits, except for a norm of sharded gradients (DdpOptions::shard). GPUs and CPUs differ, because their
// kernels differ.
//
// The program clears gradients before each step, and draws randomness by sample (lockstep's layers) or by micro-batch
// (DdpOptions::seed with LibTorch). docs/REPRODUCIBLE.md lists the other rules, and the effect of different processors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Reproducible holds the settings, which are equal on all ranks. More micro-batches make more and smaller backwards:
// set micro_batches to the largest number of ranks that any run of the training will have.
struct Reproducible {
  // The number of fixed micro-batches in a step, at least the number of ranks. 0 turns fixed micro-batches off, for the
  // highest speed.
  int micro_batches = 0;
  // The number of rows in a full step, of all ranks together.
  std::int64_t global_batch = 0;
  // The number of threads of one operation. Operations with another number of threads add up in another order.
  int threads = 1;

  bool is_on() const { return micro_batches != 0; }
};

// MicroBatch is rows [begin, end) of this rank's rows, perhaps none, which have their own forward and backward.
struct MicroBatch {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int index = 0;        // position among all ranks' micro-batches
  bool is_last = true;  // whether this micro-batch is the last of its rank
  bool operator==(const MicroBatch&) const = default;
};

// Returns the micro-batches of `rank` in a step of `rows` rows, in order; if `reproducible` is not on, one micro-batch
// of all rows. Throws InvalidArgument if the rows are more than the rank's micro-batches hold, and for a number out of
// its range.
LOCKSTEP_API std::vector<MicroBatch> micro_batches_of_step(const Reproducible& reproducible, std::int64_t rows,
                                                           int rank, int world);

}  // namespace lockstep
