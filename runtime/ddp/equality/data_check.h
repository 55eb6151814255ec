// SPDX-License-Identifier: Apache-2.0
// Checks that all ranks step one model and read one epoch of one dataset.
//
// A few numbers decide which samples a rank reads (length, seed, epoch, batch size, the begin of the pass). They must
// be the same on all ranks, as must the model's number. A digest of them travels with every synchronised step
// (step_note.h). A step in which it differs gathers the numbers, and ends with a Mismatch that names them and the
// ranks.
//
// Threads: the Reducer's.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/data_identity.h"
#include "lockstep/ddp/step_note.h"

namespace lockstep {

class DataCheck {
 public:
  // Gives the group's next model its number. All ranks construct in the same order.
  explicit DataCheck(std::shared_ptr<ProcessGroup> group);
  // Sets this rank's loader from now on.
  void watch(DataIdentity identity) { identity_ = std::move(identity); }

  // The digest for the note of synchronised step `step`.
  std::int64_t digest(std::int64_t step);
  // Judges the steps' notes, in the order of the steps. Collective if the ranks differ: Mismatch, the same on every
  // rank.
  void judge(const NotedStep& noted);

 private:
  struct Step {
    std::int64_t step;
    DataNumbers numbers;
  };

  std::shared_ptr<ProcessGroup> group_;
  int model_;
  DataIdentity identity_;
  // Steps whose notes are not judged yet: on a device they are known two steps later.
  std::deque<Step> steps_;
};

}  // namespace lockstep
