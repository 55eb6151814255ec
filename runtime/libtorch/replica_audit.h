// SPDX-License-Identifier: Apache-2.0
// ReplicaAudit runs the audits of a replica's steps (ddp/auditor.h). In an audit, the replica first computes a fixed
// micro-batch of another rank. This computation is a rehearsal: it changes no gradient, buffer, random number or
// record. ReplicaAudit digests the loss, the buffers and the gradients of the rehearsal, and of the replica's own
// micro-batch that another rank computes.
//
// A rehearsal doesn't use the arena: ReplicaAudit digests each gradient as soon as torch has accumulated the gradient,
// and then drops the gradient.
//
// Threads: as ReplicaEngine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/ddp/data_identity.h"
#include "lockstep/ddp/reproducible.h"
#include "runtime/ddp/auditor.h"

namespace lockstep::libtorch {

class ReplicaEngine;

class ReplicaAudit {
 public:
  explicit ReplicaAudit(ReplicaEngine& engine) : engine_(engine) {}

  // Sets the function that returns the numbers of the loader that deals the rows of audits.
  // Throws InvalidArgument if the loader deals such rows and the replica has no audits.
  void watch(DataIdentity identity);
  // Begins a step of `rows` rows. Returns the number of this rank's own rows, which come before the rows of another
  // rank. Throws InvalidArgument if the loader's last batch has another number of rows.
  std::int64_t begin_step(std::int64_t rows);
  // Returns Auditor::audited_step(), or nullopt if no step has had an audit.
  std::optional<std::int64_t> audited_step() const {
    return auditor_ ? std::optional(auditor_->audited_step()) : std::nullopt;
  }
  void set_audited_step(std::int64_t step) { first_step_ = step; }
  void before_blame(std::function<void(std::int64_t)> action);
  // Returns whether the current micro-batch doesn't count, because it is rehearsed or was counted before.
  bool is_rehearsing() const { return is_rehearsing_ || computes_again_; }
  // Returns whether the gradients of the current micro-batch are dropped.
  bool drops_gradients() const { return is_rehearsing_; }

  // While a Recording lives, saw_gradient() and saw_loss() digest the micro-batch if another rank computes it too.
  class Recording {
   public:
    Recording(ReplicaAudit& audit, const MicroBatch& micro_batch);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    ReplicaAudit& audit_;
  };
  bool is_recording() const { return recorded_ != nullptr; }
  // Digests an input of a forward.
  void saw_input(const at::Tensor& input);
  // Digests a gradient that torch has accumulated.
  void saw_gradient(std::size_t index, const at::Tensor& gradient);
  // Digests the loss and the buffers after a forward.
  void saw_loss(const at::Tensor& loss);

  // Calls `compute` for the micro-batch of another rank.
  using Compute = std::function<void(const MicroBatch&)>;
  void rehearse(const Compute& compute);
  // Compares the ranks' digests at the end of a step. Returns true if the step must be computed again; finish_step()
  // has then cleared the gradients and reset the buffers. Throws Mismatch on all ranks as Auditor::judge() does.
  // Collective if the step has an audit.
  bool finish_step(const Compute& compute, std::span<const MicroBatch> own);

 private:
  void make_auditor();
  Auditor::Computed rehearsed(const Compute& compute, const MicroBatch& micro_batch);
  void digest(std::size_t at, const at::Tensor& tensor, std::uint64_t seed = 1);

  ReplicaEngine& engine_;
  DataIdentity identity_;
  std::function<void(std::int64_t)> before_blame_;
  // The first step of this run, or audited_step() of the snapshot from which the run resumes.
  std::optional<std::int64_t> first_step_;
  std::unique_ptr<Auditor> auditor_;
  std::optional<Auditor::Turn> turn_;  // the turn of the current step's audit, or nullopt without an audit
  MicroBatch audited_;                 // the micro-batch of another rank
  Auditor::Computed own_digests_, audited_digests_;
  Auditor::Computed* recorded_ = nullptr;
  bool is_rehearsing_ = false;
  bool computes_again_ = false;
};

}  // namespace lockstep::libtorch
