// SPDX-License-Identifier: Apache-2.0
// A replica's step that computes the same in each run: it seeds torch's random numbers, and checks what fixed
// micro-batches (ddp/reproducible.h) require of process, module and forwards.
#pragma once

#include <ATen/core/Generator.h>

#include <vector>

#include "runtime/libtorch/trained_module.h"

namespace lockstep::libtorch {

class RepeatableStep {
 public:
  explicit RepeatableStep(const TrainedModule& module) : module_(module) {}

  bool has_micro_batches() const { return module_.options.reproducible.is_on(); }
  // With fixed micro-batches, once: sets torch's threads and algorithms. InvalidArgument for a module or an environment
  // with which bits would differ.
  void prepare() const;
  // A fixed micro-batch begins; its forward follows, unless it has no rows.
  void begin_micro_batch() { buffer_writes_.clear(); }
  // Seeds torch's default generators for a forward that trains, if the options ask for it.
  void before_forward();
  // InvalidArgument for a backward outside of the fixed micro-batches, and if the forward of one wrote a buffer.
  void refuse_other_backward() const;
  void refuse_written_buffers() const;

  // A generator of the program's own draws, of the seed, the step, the rank or fixed micro-batch, and `draw`.
  at::Generator generator(std::uint32_t draw) const;
  // The next forward is the first of its step, as in a fresh process.
  void restart() { step_ = -1; }

 private:
  void seed_forward();
  // The fixed micro-batch that is under way, or the rank.
  int stream() const;
  std::uint64_t seed_of(std::uint32_t number) const;

  const TrainedModule& module_;
  std::vector<std::uint64_t> buffer_writes_;  // before the forward of a fixed micro-batch
  std::int64_t step_ = -1;                    // of the last seeded forward
  int stream_ = -1;                           // of the last seeded forward
  std::uint32_t forwards_ = 0;                // seeded in its step and stream before it
};

}  // namespace lockstep::libtorch
