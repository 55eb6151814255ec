// SPDX-License-Identifier: Apache-2.0
// Checks that all ranks step one model and read one epoch of one dataset.
//
// A few numbers decide which samples a rank reads (length, seed, epoch, batch size, the begin of the pass). They have
// to be the same on all ranks, and so has the model's number. A digest of them rides with every synchronised step
// (step_note.h). A step in which it differs gathers the numbers, and ends as a Mismatch that names them and the ranks.
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
  // The group's next model. All ranks construct in the same order.
  explicit DataCheck(std::shared_ptr<ProcessGroup> group);
  // The loader of this rank from now on.
  void watch(DataIdentity identity) { identity_ = std::move(identity); }

  // For the note of synchronised step `step`.
  std::int64_t digest(std::int64_t step);
  // With a step's note, in the order of the steps. Collective where the ranks differ: Mismatch, the same on every rank.
  void judge(const NotedStep& noted);

 private:
  struct Step {
    std::int64_t step;
    DataNumbers numbers;
  };

  std::shared_ptr<ProcessGroup> group_;
  int model_;
  DataIdentity identity_;
  std::deque<Step> steps_;  // whose notes are not judged yet: on a device they are known two steps later
};

}  // namespace lockstep
