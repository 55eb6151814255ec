// SPDX-License-Identifier: Apache-2.0
// Checks that the replicas stay equal.
//
// Each rank counts how often its parameters are written. The counts travel with every synchronised step (step_note.h),
// and a digest of the parameters' bytes with every n-th step; an ordinary step costs no more. If the ranks differ in
// either, all ranks compare the parameters, and the step ends with a Mismatch if those differ. If they are equal,
// because a rank has written the same values in another way, the run continues, and the ranks' present counts count as
// equal.
//
// The next digest finds a write that is not counted (the counts are Tensor::version() and torch's Tensor::_version()).
// On a device the ranks read a step's note two steps later, so they do not find differences of a run's last two steps.
//
// Threads: the Reducer's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/replica_check.h"
#include "lockstep/ddp/step_note.h"
#include "runtime/base/internal_api.h"
#include "runtime/ddp/equality/data_check.h"

namespace lockstep {

class LOCKSTEP_INTERNAL_API DivergenceCheck {
 public:
  // This rank's replica.
  struct Replica {
    std::function<std::uint64_t()> versions;  // the sum of its parameters' versions; may wrap
    // The parameters, equal in number and order on all ranks; `owner` keeps copies that were made for it.
    struct State {
      std::vector<NamedBuffer> buffers;
      std::shared_ptr<void> owner = nullptr;
    };
    std::function<State()> state;
  };
  // The default of `every`: a digest travels with every step whose number, above 0, is a multiple; 0: with none. It
  // reads all parameters: about 5 ms per 100 MB on the CPU, and on a device a copy to the host, for which the host
  // waits.
  static std::int64_t default_every(DeviceId device) { return device.kind == DeviceKind::cpu ? 100 : 0; }

  // The replicas are equal at this call. InvalidArgument if `every` is below 0.
  DivergenceCheck(std::shared_ptr<ProcessGroup> group, std::int64_t every, Replica replica);

  // Compares the ranks' data too, from now on: data_check.h.
  void watch(DataIdentity identity) { data_.watch(std::move(identity)); }

  // The note for the begin_step of synchronised step `step`.
  StepNote note(std::int64_t step);
  // Judges a note. Call it after the step's finish_step, with Reducer::noted(). Collective if the ranks differ:
  // Mismatch, the same on every rank, names the ranks, the steps between which it happened and the first parameter; or
  // the data that the ranks read.
  void judge(std::int64_t step, const NotedStep& noted);

 private:
  bool wants_digest(std::int64_t step) const { return every_ > 0 && step > 0 && step % every_ == 0; }
  void compare(std::int64_t step, std::int64_t seen_in);
  void see_equal(std::int64_t step);
  [[noreturn]] void throw_mismatch(std::int64_t seen_in, const ReplicaComparison& comparison) const;

  std::shared_ptr<ProcessGroup> group_;
  std::int64_t every_;
  Replica replica_;
  DataCheck data_;
  std::uint64_t equal_versions_;  // this rank's versions when the replicas were last found equal
  std::int64_t judged_ = 0;       // notes of earlier steps tell nothing new
  int equal_comparisons_ = 0;
  std::int64_t equal_in_ = -1;  // the last step in which they are known to be equal; -1: before the first
};

}  // namespace lockstep
