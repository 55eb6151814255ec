// SPDX-License-Identifier: Apache-2.0
// A replica's step that computes the same in each run: it seeds torch's random numbers, and checks what fixed
// micro-batches (ddp/reproducible.h) require of process, module and forwards.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <utility>
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
  // Puts torch's default generators back, when it is destroyed, to where they were before a step of fixed
  // micro-batches: what the program draws between steps does not depend on the micro-batches that this rank has.
  class KeptGenerators {
   public:
    explicit KeptGenerators(const RepeatableStep& step);
    ~KeptGenerators();
    KeptGenerators(const KeptGenerators&) = delete;
    KeptGenerators& operator=(const KeptGenerators&) = delete;

   private:
    std::vector<std::pair<at::Generator, at::Tensor>> states_;
  };
  // A fixed micro-batch begins: seeds torch's default generators for all that is drawn in it.
  void begin_micro_batch();
  // Without fixed micro-batches, seeds torch's default generators for a forward that trains, if the options ask for it.
  void before_forward();
  // InvalidArgument for a backward outside of the fixed micro-batches.
  void refuse_other_backward() const;

  // A generator of the program's own draws, of the seed, the step, `key`, and the fixed micro-batch, if one is under
  // way. Without fixed micro-batches also of the rank.
  at::Generator generator(std::uint32_t key) const;
  // The next forward is the first of its step, as in a fresh process.
  void restart() { step_ = -1; }

 private:
  // Torch's default generators of the CPU and of the group's device.
  std::vector<at::Generator> default_generators() const;
  void seed_all(std::uint64_t seed) const;
  // The part of a step that draws numbers of its own: the current fixed micro-batch, none, or the rank.
  int stream() const;
  std::uint64_t seed_of(std::uint32_t number) const;

  const TrainedModule& module_;
  std::int64_t step_ = -1;      // of the last seeded forward
  std::uint32_t forwards_ = 0;  // seeded in its step before it
};

}  // namespace lockstep::libtorch
