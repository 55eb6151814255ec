// SPDX-License-Identifier: Apache-2.0
// DivergenceCheck checks that the ranks' replicas stay equal.
//
// Each rank counts how often its parameters are written. The StepNote of every synchronised step has the rank's count
// of writes; in every n-th step, the StepNote also has a digest of the parameters' bytes. A step that sends no digest
// costs no extra time. If the ranks' counts or digests differ, all ranks compare the parameters, and the step ends with
// a Mismatch if the parameters differ. If the parameters are equal although the counts differ, the run continues, and
// every rank counts its writes from 0 again.
//
// A tensor's count of writes is Tensor::version() or, with LibTorch, Tensor::_version(). If a tensor does not count a
// write, only the next digest shows the write. On a device the ranks read a step's StepNote two steps later, and
// therefore miss differences that arise in the last two steps of a run.
//
// Threads: only the Reducer's thread calls the functions of DivergenceCheck.
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
  // Replica has the functions through which a DivergenceCheck reads this rank's parameters.
  struct Replica {
    std::function<std::uint64_t()> versions;  // the sum of the parameters' versions, which may wrap
    // State has the parameters' buffers, equal in number and order on all ranks. `owner` keeps the memory of the
    // copies, if any, that were made for `buffers`.
    struct State {
      std::vector<NamedBuffer> buffers;
      std::shared_ptr<void> owner = nullptr;
    };
    std::function<State()> state;
  };
  // Returns the default of `every`. The ranks compare digests in every step whose number is above 0 and a multiple of
  // `every`, or in no step if `every` is 0. To compute a digest, a rank reads all parameters, which takes about 5 ms
  // per 100 MB on the CPU. On a device the rank copies all parameters to the host for a digest, and the host waits for
  // the copy.
  static std::int64_t default_every(DeviceId device) { return device.kind == DeviceKind::cpu ? 100 : 0; }

  // REQUIRES: the replicas of all ranks are equal at this call. Throws InvalidArgument if `every` is below 0.
  DivergenceCheck(std::shared_ptr<ProcessGroup> group, std::int64_t every, Replica replica);

  // Makes later steps also compare which data the ranks read (see data_check.h).
  void watch(DataIdentity identity) { data_.watch(std::move(identity)); }

  // Returns this rank's StepNote for the begin_step() of synchronised step `step`.
  StepNote note(std::int64_t step);
  // Checks `noted`, the combined StepNote of a step. Call judge() after the finish_step() of step `step`, with
  // Reducer::noted(). If the ranks' counts or digests differ, judge() is collective. If the ranks' replicas or data
  // differ, judge() throws the same Mismatch on every rank. If replicas differ, the Mismatch names the ranks, the first
  // parameter that differs, and the steps between which the replicas came apart. If data differ, the Mismatch names the
  // data that each rank read.
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
