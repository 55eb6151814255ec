// SPDX-License-Identifier: Apache-2.0
// The collectives, as NCCL calls and what comes around them in the stream.
//
// Sums are ncclSum, divided behind it where the operation is an average or weighted: ncclAvg would keep NCCL from its
// fastest ways (NVLS, symmetric memory) and rounds the factor to the element type. Weights travel in the group of their
// buffer. Gather, scatter and all-to-all are sends and receives in one group.
#pragma once

#include "runtime/comm/nccl/pending_call.h"
#include "runtime/comm/transfer.h"

namespace lockstep::nccl {

ncclDataType_t data_type_of(DType dtype);
// avg is a sum here.
ncclRedOp_t operation_of(ReduceOp op);

class NcclCollective final : public PendingCall {
 public:
  explicit NcclCollective(comm::CollectiveArgs of) : args(std::move(of)) {}

  std::string describe() const override { return comm::describe(args.record, sequence); }
  void prepare(const LaunchContext& context) override;
  void launch(const LaunchContext& context) override;
  void after_launch(const LaunchContext& context) override;
  void finish() override;
  // Weights that don't fit add up to something below 0, mostly: NCCL adds them modulo 2^64.
  std::optional<std::string> problem() const override;
  bool is_for_host() const override;
  bool is_after(int rank, const Goodbye& goodbye) const override;
  const comm::OpRecord* record() const override { return &args.record; }
  std::int64_t combined(std::size_t word) const override { return words[word]; }

  const comm::CollectiveArgs args;
  comm::InlineScalars words{};  // of all ranks, once done

 private:
  void call(const LaunchContext& context);
  void exchange(const LaunchContext& context, bool gives_parts, bool takes_parts, int giver, int taker);
  // Words that ride along: the weight, then the note's fields; 0 if there are none.
  std::size_t word_count() const;
  // One buffer, which is read and written.
  bool is_in_place() const {
    return comm::is_reduction_in_place(args.record.kind) || args.record.kind == comm::OpKind::broadcast;
  }

  StagedBuffer input_;
  StagedBuffer output_;
  const void* in_ = nullptr;
  void* out_ = nullptr;
  std::shared_ptr<void> words_on_device_;  // summed there; a barrier has one
  std::shared_ptr<void> words_on_host_;    // pinned: this rank's on their way there, and the sums on their way back
};

}  // namespace lockstep::nccl
