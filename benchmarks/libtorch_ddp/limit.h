// SPDX-License-Identifier: Apache-2.0
// The least that any data parallelism on one host can do after torch's own backward: a copy of each gradient into
// shared memory, a barrier, each rank writes the mean of its part into every rank's copy, a barrier, and .grad is that
// copy. Nothing overlaps, nothing is checked, a rank that dies leaves the others waiting.
#pragma once

#include <memory>
#include <string>

#include "benchmarks/libtorch_ddp/models.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::benchmark {

class Limit {
 public:
  // Collective: the ranks of `group` share memory through /proc. Parameters are float32, on the CPU. `name` is the key
  // of the store by which the ranks meet, so a group's Limits need different names.
  Limit(const Model& model, ProcessGroup& group, const std::string& name);
  ~Limit();
  // Before backward: torch finds no gradient, so it keeps each new one without a copy.
  void before_backward();
  // .grad is the mean over the ranks, in shared memory.
  void after_backward();
  // Takes the means of whatever the shared memory holds: the part of after_backward() that remains if gradients are
  // computed in shared memory.
  void reduce();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::benchmark
