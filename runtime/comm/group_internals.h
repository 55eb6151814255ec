// SPDX-License-Identifier: Apache-2.0
// The interface of a process group for lockstep's own code, not for users: ProcessGroup::internals().
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "lockstep/comm/process_group.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

class CoordinatedStop;

namespace comm {

class LOCKSTEP_INTERNAL_API GroupInternals {
 public:
  GroupInternals();
  virtual ~GroupInternals() = default;

  // Whether collectives take buffers that are there. A group on a device may take host memory too: for set-up code, at
  // the price of two copies.
  virtual bool takes(DeviceId where) const = 0;
  // The job's membership reports that a rank, or the store (rank -1), has failed: fails the group with that cause. A
  // backend that sees the same by itself and can say more of it may leave it to its next call. Any thread; the first
  // cause stays.
  virtual void on_peer_failure(const Cause& cause) = 0;
  // Tells the job's launcher of a failure of this rank's own, with ends_group false, that the other ranks are about to
  // hear of in another way: the failures that they then report are consequences. Blocks for a moment at most; does
  // nothing without a membership.
  virtual void report_failure([[maybe_unused]] const Cause& cause) {}
  // Number of the collective that this rank started last, from 1; 0: none, or the backend doesn't count. Any thread.
  virtual std::int64_t last_sequence() const { return 0; }
  // Name of that collective, such as "all_reduce"; empty: none, or not known. Any thread.
  virtual std::string_view last_collective() const { return {}; }
  // Sets this rank's place in its training, which messages name, the other ranks' too. The Reducer calls it with the
  // step, from 0, and the bucket that it launches or waits for; -1: none.
  virtual void set_step(std::int64_t step, int bucket = -1) = 0;
  // The step and bucket of the last set_step(); -1: none. Any thread.
  virtual std::int64_t step() const = 0;
  virtual int bucket() const = 0;
  // Makes a group that all ranks have agreed on. Called on its ranks alone.
  virtual std::shared_ptr<ProcessGroup> make_subgroup(const Subgroup& subgroup) = 0;

  // The state behind the functions of comm/stop.h: this rank's request, and the stop that all ranks have agreed on.
  const std::shared_ptr<CoordinatedStop>& coordinated_stop() const { return coordinated_stop_; }
  // Number of a call of split() or new_group(), from 1: the same on every rank.
  int next_subgroup_call() { return ++subgroup_calls_; }
  // Number of a model that the ranks begin to train together, from 1: the same on every rank.
  int next_model() { return ++models_; }
  // Notes that the replicas of a model that these ranks train are not equal any more: a survivor must not save its own.
  // The training's thread.
  void note_apart() { are_apart_ = true; }
  bool are_apart() const { return are_apart_; }

 private:
  std::shared_ptr<CoordinatedStop> coordinated_stop_;
  int subgroup_calls_ = 0;
  int models_ = 0;
  bool are_apart_ = false;
};

}  // namespace comm
}  // namespace lockstep
