// SPDX-License-Identifier: Apache-2.0
// DivergenceCheck checks that the replicas stay equal.
//
// Each rank counts how often its parameters are written. The counts travel with every synchronised step (step_note.h),
// and a digest of the parameters' bytes travels with every n-th step. A step without a digest costs nothing more. If
// the counts or the digests differ, all ranks compare the parameters, and the step ends with a Mismatch if the
// parameters differ. If the parameters are equal, because a rank has written the same values in another way, the run
// continues, and the ranks' present counts count as equal.
//
// The counts are Tensor::version() and torch's Tensor::_version(). The next digest finds a write that is not
// counted. On a device the ranks read a step's note two steps later, so the ranks do not find differences of a run's
// last two steps.
//
// Threads: only the Reducer's thread calls this class.
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
  // Replica gives access to this rank's replica.
  struct Replica {
    std::function<std::uint64_t()> versions;  // the sum of the parameters' versions, which may wrap
    // State has the parameters, equal in number and order on all ranks. `owner` keeps the copies that were made
    // for `buffers`.
    struct State {
      std::vector<NamedBuffer> buffers;
      std::shared_ptr<void> owner = nullptr;
    };
    std::function<State()> state;
  };
  // Returns the default of `every`. A digest travels with every step whose number, above 0, is a multiple of `every`;
  // with 0, no digest travels. A digest reads all parameters, which takes about 5 ms per 100 MB on the CPU. On a device
  // a digest copies all parameters to the host, and the host waits for the copy.
  static std::int64_t default_every(DeviceId device) { return device.kind == DeviceKind::cpu ? 100 : 0; }

  // REQUIRES: the replicas are equal at this call. Throws InvalidArgument if `every` is below 0.
  DivergenceCheck(std::shared_ptr<ProcessGroup> group, std::int64_t every, Replica replica);

  // Compares the ranks' data too from now on; see data_check.h.
  void watch(DataIdentity identity) { data_.watch(std::move(identity)); }

  // Returns the note for the begin_step of synchronised step `step`.
  StepNote note(std::int64_t step);
  // Judges a note. Call judge() after the step's finish_step, with Reducer::noted(). If the ranks' notes differ,
  // judge() is collective. If the ranks' replicas or data differ, judge() throws the same Mismatch on every rank. The
  // Mismatch names the ranks, the steps between which the replicas came apart and the first parameter, or the data that
  // the ranks read.
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
  std::int64_t judged_ = 0;       // the first step whose note is not judged yet
  int equal_comparisons_ = 0;
  std::int64_t equal_in_ = -1;  // the last step in which the replicas are known to be equal; -1 before the first step
};

}  // namespace lockstep
