// SPDX-License-Identifier: Apache-2.0
// A replica's step in virtual shards.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/libtorch/sync_batch_norm.h"
#include "runtime/libtorch/operators.h"
#include "runtime/libtorch/replica_impl.h"

namespace lockstep::libtorch {

void ReplicaImpl::make_reproducible(const ::torch::nn::Module& module) {
  const Reproducible& wanted = options_.reproducible;
  const auto refuse_sync_batch_norm = [&](const ::torch::nn::Module& part, const std::string& name) {
    if (dynamic_cast<const SyncBatchNormImpl*>(&part) == nullptr) return;
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: '{}' is a SyncBatchNorm, which computes with the rows that all ranks have "
        "at once, and {} virtual shards come one after the other; take a norm of samples (GroupNorm, "
        "LayerNorm)",
        name, wanted.virtual_shards));
  };
  refuse_sync_batch_norm(module, "module");
  // Without the module itself, which may be on the stack.
  for (const auto& part : module.named_modules("", /*include_self=*/false)) {
    refuse_sync_batch_norm(*part.value(), part.key());
  }
  at::set_num_threads(wanted.threads);
  if (group_->device().kind == DeviceKind::cpu) return;
  const auto cublas = Environment::of_process().get("CUBLAS_WORKSPACE_CONFIG").value_or("");
  if (cublas != ":4096:8" && cublas != ":16:8") {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: {} virtual shards on {} with CUBLAS_WORKSPACE_CONFIG='{}', with which cuBLAS may add "
        "up in another order each time; set CUBLAS_WORKSPACE_CONFIG=:4096:8 before the program starts",
        wanted.virtual_shards, group_->device().str(), cublas));
  }
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
#if LOCKSTEP_TORCH_AT_LEAST(2, 2)
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // with NaN, one kernel more for each tensor
#endif
  at::globalContext().setBenchmarkCuDNN(false);
}

std::vector<StepShard> ReplicaImpl::begin_shards(std::int64_t rows) {
  trainer_->end_shard();
  settle_lost();
  try {
    return trainer_->begin_shards(rows);
  } catch (...) {
    trainer_->keep_failure("backward");
    give_up();
    throw;
  }
}

bool ReplicaImpl::begin_shard(const ::torch::nn::Module& module, const StepShard& shard) {
  if (!options_.reproducible.is_on()) return true;
  trainer_->begin_shard(shard);
  versions_before_forward_.clear();
  if (shard.begin < shard.end) return true;
  run_without_data(module);
  return false;
}

// If no parameter of this module got a gradient, no close() has ended the shard.
void ReplicaImpl::end_shard() { trainer_->end_shard(); }

void ReplicaImpl::shard_failed() noexcept {
  if (!trainer_->has_failure()) trainer_->keep_failure("backward");  // else a forward's
  give_up();
}

void ReplicaImpl::refuse_without_shards() const {
  if (!options_.reproducible.is_on() || trainer_->shard()) return;
  throw InvalidArgument(fmt::format(
      "DistributedDataParallel: a backward of its own in step {}, of {} virtual shards, of which each has a "
      "loss: call ddp.backward(rows, loss_of), which asks for them",
      trainer_->step(), options_.reproducible.virtual_shards));
}

std::vector<std::int64_t> ReplicaImpl::buffer_versions() const {
  std::vector<std::int64_t> versions;
  for (const NamedTensor& buffer : buffers_) {
    versions.push_back(buffer.tensor.is_inference() ? 0 : static_cast<std::int64_t>(buffer.tensor._version()));
  }
  return versions;
}

// The values that a forward leaves in a buffer depend on the shards that this rank had before.
void ReplicaImpl::refuse_written_buffers() const {
  const std::vector<std::int64_t> now = buffer_versions();
  for (std::size_t i = 0; i < now.size() && i < versions_before_forward_.size(); ++i) {
    if (now[i] == versions_before_forward_[i]) continue;
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: the forward of step {} wrote the buffer '{}' (running statistics?), which "
        "would depend on the shards that this rank has; take a norm without such buffers (GroupNorm, "
        "LayerNorm, track_running_stats(false)), or train without virtual shards",
        trainer_->step(), buffers_[i].name));
  }
}

}  // namespace lockstep::libtorch
