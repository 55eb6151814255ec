// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/repeatable_step.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <mutex>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/libtorch/torch_stream.h"
#include "runtime/libtorch/operators.h"

namespace lockstep::libtorch {

void RepeatableStep::prepare() const {
  if (!has_micro_batches()) return;
  for (const auto& [name, norm] : module_.sync_batch_norms()) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: '{}' is a SyncBatchNorm, which computes with the rows that all ranks have at once, "
        "but {} fixed micro-batches come one after the other; take a norm of samples (GroupNorm, LayerNorm)",
        name.empty() ? "module" : name, module_.options.reproducible.micro_batches));
  }
  at::set_num_threads(module_.options.reproducible.threads);
  if (module_.group->device().kind == DeviceKind::cpu) return;
  const auto cublas = Environment::of_process().get("CUBLAS_WORKSPACE_CONFIG").value_or("");
  if (cublas != ":4096:8" && cublas != ":16:8") {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: got {} fixed micro-batches on {} with CUBLAS_WORKSPACE_CONFIG='{}', with which "
        "cuBLAS may add up in another order each time; set CUBLAS_WORKSPACE_CONFIG=:4096:8 before the program starts",
        module_.options.reproducible.micro_batches, module_.group->device().str(), cublas));
  }
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
#if LOCKSTEP_TORCH_AT_LEAST(2, 2)
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // with NaN, one kernel more for each tensor
#endif
  at::globalContext().setBenchmarkCuDNN(false);
}

void RepeatableStep::refuse_other_backward() const {
  if (!has_micro_batches() || module_.trainer.micro_batch()) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: the program called backward() itself in step {} of {} fixed micro-batches, "
                  "each of which has its own loss: call ddp.backward(rows, loss_of) instead. In the step of another "
                  "DistributedDataParallel, freeze this module's parameters, or wrap both modules in one",
                  module_.trainer.step(), module_.options.reproducible.micro_batches));
}

// With fixed micro-batches there is always a seed: else noise would depend on which ones this rank had before.
void RepeatableStep::begin_micro_batch() { seed_all(seed_of(0)); }

void RepeatableStep::before_forward() {
  if (!module_.options.seed || has_micro_batches() || !module_.is_training()) return;
  forwards_ = std::exchange(step_, module_.trainer.steps()) == module_.trainer.steps() ? forwards_ + 1 : 0;
  seed_all(seed_of(forwards_));
}

std::vector<at::Generator> RepeatableStep::default_generators() const {
  std::vector<at::Generator> generators{at::globalContext().defaultGenerator(at::kCPU)};
  const at::Device device = device_of(*module_.group);
  if (!device.is_cpu()) generators.push_back(at::globalContext().defaultGenerator(device));
  return generators;
}

void RepeatableStep::seed_all(std::uint64_t seed) const {
  for (at::Generator& generator : default_generators()) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

RepeatableStep::KeptGenerators::KeptGenerators(const RepeatableStep& step) {
  if (!step.has_micro_batches()) return;
  for (at::Generator& generator : step.default_generators()) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
}

RepeatableStep::KeptGenerators::~KeptGenerators() {
  for (auto& [generator, state] : states_) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
}

int RepeatableStep::stream() const {
  const auto& micro_batch = module_.trainer.micro_batch();
  if (micro_batch) return micro_batch->index;
  constexpr int kOutside = -1;
  return has_micro_batches() ? kOutside : module_.group->rank();
}

std::uint64_t RepeatableStep::seed_of(std::uint32_t number) const {
  const std::uint64_t seed = module_.options.seed.value_or(0);
  const auto step = static_cast<std::uint64_t>(module_.trainer.steps());
  const auto bits = philox({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), number,
                            static_cast<std::uint32_t>(stream())},
                           {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return bits[0] | std::uint64_t{bits[1]} << 32;
}

at::Generator RepeatableStep::generator(std::uint32_t key) const {
  constexpr std::uint32_t kNotAForward = 1u << 31;
  at::Generator of_process = at::globalContext().defaultGenerator(device_of(*module_.group));
  at::Generator own;
  {
    const std::lock_guard<std::mutex> lock(of_process.mutex());
    own = of_process.clone();
  }
  own.set_current_seed(seed_of(kNotAForward | key));
  return own;
}

}  // namespace lockstep::libtorch
