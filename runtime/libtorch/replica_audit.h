// SPDX-License-Identifier: Apache-2.0
// The audits of a replica's steps (ddp/auditor.h): it computes a fixed micro-batch of another rank before its own, as a
// rehearsal that leaves nothing behind, and digests loss, buffers and gradients as torch makes them.
//
// A rehearsal takes no memory of the arena: a gradient is digested when its accumulator has it, and dropped.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/ddp/data_identity.h"
#include "lockstep/ddp/reproducible.h"
#include "runtime/ddp/auditor.h"

namespace lockstep::libtorch {

class ReplicaEngine;

class ReplicaAudit {
 public:
  explicit ReplicaAudit(ReplicaEngine& engine) : engine_(engine) {}

  // The loader that deals the rows of audits.
  void watch(DataIdentity identity) { identity_ = std::move(identity); }
  // A step of `rows` rows begins. Returns this rank's own rows: without those that it computes for another rank.
  // InvalidArgument if these are not the rows of the batch that the loader has handed out last.
  std::int64_t begin_step(std::int64_t rows);
  void end_step() { computes_again_ = false; }
  // See Auditor; nullopt if no step has had an audit.
  std::optional<std::int64_t> audited_step() const {
    return auditor_ ? std::optional(auditor_->audited_step()) : std::nullopt;
  }
  void before_blame(std::function<void(std::int64_t)> action);
  // Whether the step has an audit.
  bool is_on() const { return turn_.has_value(); }
  // Whether a micro-batch is computed that does not count.
  bool is_rehearsing() const { return is_rehearsing_ || computes_again_; }
  // Whether gradients of the micro-batch that is computed are dropped.
  bool drops_gradients() const { return is_rehearsing_; }

  // Around the computation of a micro-batch, which is digested if it is one that another rank computes too.
  class Recording {
   public:
    Recording(ReplicaAudit& audit, const MicroBatch& micro_batch);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    ReplicaAudit& audit_;
  };
  // Within it: a gradient that an accumulator has, and the loss with what its forward wrote to buffers.
  void saw_gradient(std::size_t index, const at::Tensor& gradient);
  void saw_loss(const at::Tensor& loss);

  // Computes the other rank's micro-batch by `compute`.
  using Compute = std::function<void(const MicroBatch&)>;
  void rehearse(const Compute& compute);
  // Collective, after the step. Returns whether the step must be computed again, and has cleared it then; throws
  // Mismatch on all ranks if a rank is wrong for good.
  bool finish_step(const Compute& compute, std::span<const MicroBatch> own);

 private:
  void make_auditor();
  Auditor::Computed rehearsed(const Compute& compute, const MicroBatch& micro_batch);
  void digest(std::size_t at, const at::Tensor& tensor);

  ReplicaEngine& engine_;
  DataIdentity identity_;
  std::function<void(std::int64_t)> before_blame_;
  std::optional<std::int64_t> first_step_;  // of this run
  std::unique_ptr<Auditor> auditor_;
  std::optional<Auditor::Turn> turn_;  // of the step; none without an audit
  MicroBatch audited_;                 // the rows of another rank's micro-batch
  Auditor::Computed own_digests_, audited_digests_;
  Auditor::Computed* recorded_ = nullptr;
  bool is_rehearsing_ = false;
  bool computes_again_ = false;
};

}  // namespace lockstep::libtorch
