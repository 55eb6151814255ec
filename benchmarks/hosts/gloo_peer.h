// SPDX-License-Identifier: Apache-2.0
// Gloo's own all-reduce between the ranks of a group, connected through the group's store.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

class GlooPeer {
 public:
  enum class Algorithm { ring, halving_doubling };

  // `interface`: of this rank's host, at which the others reach it.
  GlooPeer(ProcessGroup& group, const std::string& interface);
  ~GlooPeer();

  // In place, sum of float32; blocks.
  void all_reduce(Algorithm algorithm, float* data, std::size_t count);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::bench
