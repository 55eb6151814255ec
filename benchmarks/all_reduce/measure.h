// SPDX-License-Identifier: Apache-2.0
// Times of one kind of operation, as all ranks saw them.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

// One way to do the work.
struct Contender {
  std::function<void()> barrier;  // before each sample
  std::function<void()> prepare;  // after that, not timed; may be empty
  std::function<void()> run;      // timed
};

// How often: `samples` samples per block, each of `batch` operations in a row.
struct Effort {
  int blocks = 0;
  int samples = 0;
  int batch = 1;
};
Effort effort_for(std::size_t bytes);

// Runs blocks of the contenders in turns. For each contender all samples in seconds per operation, each the slowest
// rank's; the same on every rank.
std::vector<std::vector<double>> measure_in_turns(ProcessGroup& group, const std::vector<Contender>& contenders,
                                                  const Effort& effort);

// How many times longer `a` takes than `b`, of times of one measure_in_turns(): the median over the blocks, so that
// what the machine does from block to block is in neither.
double ratio(const std::vector<double>& a, const std::vector<double>& b, const Effort& effort);

// The middle one; of an even number the upper.
double median(std::vector<double> values);

}  // namespace lockstep::bench
