// SPDX-License-Identifier: Apache-2.0
// Reproducible makes a training step compute the same bits with any number of ranks.
//
//   data::DataLoader loader(dataset, *group, {.global_batch = 64, .micro_batches = 8});
//   DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 8, .global_batch = 64}});
//   for (const data::Batch& batch : loader) {
//     ddp.backward(batch, [&](const data::Batch& rows) { return cross_entropy(ddp(rows.x, rows.ids), rows.y); });
//     optimizer.step();
//     optimizer.zero_grad();
//   }
//
// A sampler with the option micro_batches (data/sampler.h) cuts the rows of a step into fixed micro-batches of equal
// size. For example, 64 rows are always 8 micro-batches, which 1 to 8 ranks share. Each micro-batch runs through a
// separate forward and backward, on a fixed number of threads. A binary tree sums the micro-batches' gradients; the
// left child of a tree node of n micro-batches holds as many micro-batches as the largest power of two below n. Each
// rank sums the tree nodes that contain only its own micro-batches; the remaining nodes are summed across ranks.
//
// Runs on CPUs therefore compute the same bits with any number of ranks and hosts, any backend and any buckets. A
// stopped run may resume with another number of ranks, and still computes the same bits. Runs on GPUs of one kind, over
// NCCL, also compute the same bits, except for a norm of sharded gradients (DdpOptions::shard). GPUs and CPUs compute
// different bits.
//
// The program must clear gradients before each step, and draw random numbers per sample (lockstep's layers) or per
// micro-batch (DdpOptions::seed with LibTorch). See docs/REPRODUCIBLE.md for all rules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Reproducible holds the settings of reproducible training, which must be equal on all ranks. More micro-batches
// mean more and smaller backwards, so set micro_batches to the largest number of ranks that any run of the training
// will have.
struct Reproducible {
  // The number of fixed micro-batches in a step, at least the number of ranks. The value 0 turns fixed micro-batches
  // off, for the highest speed.
  int micro_batches = 0;
  // The number of rows in a full step, summed over all ranks.
  std::int64_t global_batch = 0;
  // The number of threads of one operation. The order in which an operation adds numbers depends on the number of
  // threads that the operation runs on.
  int threads = 1;

  bool is_on() const { return micro_batches != 0; }
};

// MicroBatch describes rows [begin, end) of this rank's rows, for which the program runs one forward and backward. The
// range may be empty.
struct MicroBatch {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int index = 0;        // position among all ranks' micro-batches
  bool is_last = true;  // whether this micro-batch is the last of its rank
  bool operator==(const MicroBatch&) const = default;
};

// Returns the micro-batches of `rank`, in order, in a step in which `rank` has `rows` rows. If `reproducible` sets no
// fixed micro-batches, micro_batches_of_step() returns one micro-batch of all rows. Throws InvalidArgument if the
// rank's micro-batches hold fewer than `rows` rows, or if an argument is out of range.
LOCKSTEP_API std::vector<MicroBatch> micro_batches_of_step(const Reproducible& reproducible, std::int64_t rows,
                                                           int rank, int world);

}  // namespace lockstep
