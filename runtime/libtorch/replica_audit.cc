// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/replica_audit.h"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"
#include "runtime/base/hash.h"
#include "runtime/libtorch/replica_engine.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

std::uint64_t number_of(const DataNumbers& numbers, const char* name) {
  const auto found = std::ranges::find(numbers, name, &DataNumbers::value_type::first);
  return found == numbers.end() ? 0 : found->second;
}

// Returns a text with the versions of libraries and the variables that choose kernels.
std::string libraries() {
  std::string text = at::show_config();
  for (const char* name : {"MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE", "ONEDNN_MAX_CPU_ISA",
                           "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"}) {
    text += fmt::format("{}={}\n", name, Environment::of_process().get(name).value_or(""));
  }
  return text;
}

// Returns the tensors of the module that are not parameters.
std::vector<const NamedTensor*> buffers_of(const ReplicaEngine& engine) {
  std::vector<const NamedTensor*> buffers;
  for (const NamedTensor& item : engine.state()) {
    if (!item.is_parameter) buffers.push_back(&item);
  }
  return buffers;
}

// A Flag sets a bool to true while the Flag lives.
class Flag {
 public:
  explicit Flag(bool& flag) : flag_(flag) { flag_ = true; }
  ~Flag() { flag_ = false; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
};

}  // namespace

void ReplicaAudit::make_auditor() {
  if (auditor_) return;
  std::vector<std::string> names{"the inputs of forward"};
  for (const auto& parameter : engine_.parameters()) names.push_back(parameter.name);
  names.emplace_back("the loss");
  for (const NamedTensor* buffer : buffers_of(engine_)) names.push_back(buffer->name);
  auditor_ = std::make_unique<Auditor>(engine_.group, engine_.options.reproducible, std::move(names), libraries(),
                                       *first_step_);
  auditor_->before_blame(before_blame_);
}

void ReplicaAudit::watch(DataIdentity identity) {
  const DataNumbers numbers = identity ? identity() : DataNumbers{};
  const bool has_audits = std::ranges::find(numbers, kAuditNumber, &DataNumbers::value_type::first) != numbers.end();
  if (has_audits && engine_.group->device().kind != DeviceKind::cpu) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: watch() got a loader with audit_every, and the module is on {}, where audits are not "
        "supported; leave audit_every out",
        engine_.group->device().str()));
  }
  if (has_audits && !engine_.options.reproducible.is_on()) {
    throw InvalidArgument(
        "DistributedDataParallel: watch() got a loader with audit_every, and DdpOptions::reproducible is not set; set "
        "it, or leave audit_every out");
  }
  identity_ = std::move(identity);
}

void ReplicaAudit::before_blame(std::function<void(std::int64_t)> action) {
  before_blame_ = std::move(action);
  if (auditor_) auditor_->before_blame(before_blame_);
}

std::int64_t ReplicaAudit::begin_step(std::int64_t rows) {
  turn_.reset();
  computes_again_ = false;
  if (!first_step_) first_step_ = engine_.trainer.steps();
  const Reproducible& same = engine_.options.reproducible;
  const int rank = engine_.group->rank(), world = engine_.group->size();
  if (!identity_ || !same.is_on() || world == 1) return rows;
  const DataNumbers numbers = identity_();
  const std::int64_t own =
      data::rows_in_micro_batches(same.global_batch, same.global_batch, same.micro_batches, rank, world).count;
  if (rows <= own) return rows;  // perhaps of another loader
  const auto number = static_cast<std::int64_t>(number_of(numbers, kAuditNumber));
  Auditor::Turn turn;
  if (number > 0) {
    make_auditor();
    turn = auditor_->turn(number, static_cast<int>(number_of(numbers, kAuditRanksPerHost)));
    const std::int64_t each = data::micro_batch_rows(same.global_batch, same.micro_batches);
    audited_.index = turn.audited[static_cast<std::size_t>(rank)];
    audited_.begin = own;
    audited_.end = own + std::min(each, same.global_batch - each * audited_.index);
  }
  if (number == 0 || rows != audited_.end) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: backward got {} rows, but the batch that the watched loader handed out last has {} "
        "rows of rank {}{}; call backward with all rows of a batch before the next batch is read, and give the loader "
        "the global_batch ({}) and micro_batches ({}) of DdpOptions::reproducible",
        rows, own, rank,
        number == 0 ? " and no audit"
                    : fmt::format(", and after these {} rows that it computes for another rank", audited_.end - own),
        same.global_batch, same.micro_batches));
  }
  turn_ = std::move(turn);
  own_digests_ = audited_digests_ = {};
  return own;
}

ReplicaAudit::Recording::Recording(ReplicaAudit& audit, const MicroBatch& micro_batch) : audit_(audit) {
  if (!audit.turn_) return;
  Auditor::Computed* const into = audit.is_rehearsing_                    ? &audit.audited_digests_
                                  : micro_batch.index == audit.turn_->own ? &audit.own_digests_
                                                                          : nullptr;
  if (into == nullptr) return;
  *into = {.micro_batch = micro_batch.index, .digests = std::vector<std::uint64_t>(audit.auditor_->names(), 0)};
  into->first_core = ::sched_getcpu();
  audit.recorded_ = into;
}

ReplicaAudit::Recording::~Recording() {
  if (Auditor::Computed* const into = std::exchange(audit_.recorded_, nullptr)) into->last_core = ::sched_getcpu();
}

void ReplicaAudit::digest(std::size_t at, const at::Tensor& tensor, std::uint64_t seed) {
  at::Tensor dense = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
  if (!dense.is_non_overlapping_and_dense()) dense = dense.contiguous();
  recorded_->digests[at] = hash64(dense.data_ptr(), dense.nbytes(), seed);
}

void ReplicaAudit::saw_gradient(std::size_t index, const at::Tensor& gradient) {
  if (recorded_ != nullptr) digest(1 + index, gradient);
}

void ReplicaAudit::saw_input(const at::Tensor& input) { digest(0, input, recorded_->digests[0] + 1); }

void ReplicaAudit::saw_loss(const at::Tensor& loss) {
  if (recorded_ == nullptr) return;
  std::size_t at = 1 + engine_.parameters().size();
  if (loss.defined()) digest(at, loss.detach());
  for (const NamedTensor* buffer : buffers_of(engine_)) digest(++at, buffer->tensor);
}

// Takes the gradients of earlier backwards out of the parameters during `compute`, because torch would add to them.
Auditor::Computed ReplicaAudit::rehearsed(const Compute& compute, const MicroBatch& micro_batch) {
  std::vector<at::Tensor> kept;
  for (const auto& parameter : engine_.parameters()) {
    kept.push_back(std::exchange(parameter.tensor.mutable_grad(), at::Tensor()));
  }
  const auto put_back = [&] {
    for (std::size_t i = 0; i < kept.size(); ++i) engine_.parameters()[i].tensor.mutable_grad() = kept[i];
    engine_.trainer.end_micro_batch();
    engine_.trainer.spend_weight();
  };
  const Flag flag(is_rehearsing_);
  try {
    compute(micro_batch);
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  return std::exchange(audited_digests_, {});
}

void ReplicaAudit::rehearse(const Compute& compute) {
  if (!turn_) return;
  engine_.trainer.hold_update();
  audited_digests_ = rehearsed(compute, audited_);
}

bool ReplicaAudit::finish_step(const Compute& compute, std::span<const MicroBatch> own) {
  Trainer& trainer = engine_.trainer;
  if (!turn_) {
    if (std::exchange(computes_again_, false)) trainer.release_update();
    return false;
  }
  const Auditor::Turn turn = *std::exchange(turn_, std::nullopt);
  const int rank = engine_.group->rank();
  const DivergenceCheck::Replica::State weights = engine_.dense_state();
  const std::int64_t step = trainer.steps() - 1;
  const auto contradictions = auditor_->compare(turn, weights.buffers, own_digests_, audited_digests_, step);
  bool is_wrong = false;
  if (!contradictions.empty()) {
    const Auditor::Computed own_first = own_digests_, audited_first = audited_digests_;
    Auditor::Computed own_again = own_first, audited_again = audited_first;
    turn_ = turn;  // which is recorded again
    trainer.repeat_step();
    {
      const MicroBatchBuffers::Again again(engine_.micro_batch_buffers);
      const bool is_audited = std::ranges::any_of(contradictions, [&](const auto& it) { return it.owner == rank; });
      const bool is_auditor = std::ranges::any_of(contradictions, [&](const auto& it) { return it.auditor == rank; });
      if (is_audited) own_again = rehearsed(compute, *std::ranges::find(own, turn.own, &MicroBatch::index));
      if (is_auditor) audited_again = rehearsed(compute, audited_);
    }
    turn_.reset();
    trainer.end_step_again();
    is_wrong = auditor_->judge(turn, contradictions, own_first, audited_first, own_again, audited_again, step);
  }
  if (!is_wrong) {
    trainer.release_update();
    return false;
  }
  trainer.repeat_step();
  trainer.hold_update();
  engine_.shards.clear_gradients(/*set_to_none=*/true);
  engine_.micro_batch_buffers.begin_again();
  return computes_again_ = true;
}

}  // namespace lockstep::libtorch
