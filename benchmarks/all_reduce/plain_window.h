// SPDX-License-Identifier: Apache-2.0
// What a window can do at best: an all-reduce of float32 by hand, without a library, checks, deadlines or sleep.
//
// Each rank has two halves of 256 KiB in memory that all map. A rank copies a chunk of its own memory to one half,
// waits until all have, and adds the others' to its memory. It spins while it waits, and yields where ranks have to
// share cores.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

class PlainWindow {
 public:
  // Collective. The ranks are processes of one host and user.
  explicit PlainWindow(ProcessGroup& group);
  ~PlainWindow();
  PlainWindow(const PlainWindow&) = delete;
  PlainWindow& operator=(const PlainWindow&) = delete;

  // In place, sum over all ranks.
  void all_reduce(std::span<float> data);

 private:
  void await_all();

  int rank_;
  int size_;
  bool may_spin_;
  std::size_t bytes_;
  void* memory_;
  std::atomic<std::uint64_t>* arrived_;  // by all ranks, since the start
  float* halves_;
  std::uint64_t waits_ = 0;
  std::uint64_t chunks_ = 0;
};

}  // namespace lockstep::bench
