// SPDX-License-Identifier: Apache-2.0
// DataCheck checks that all ranks step one model and read one epoch of one dataset.
//
// A few numbers decide which samples a rank reads (length, seed, epoch, batch size, the begin of the pass). These
// numbers and the model's number must be equal on all ranks. A digest of the numbers travels with every synchronised
// step (step_note.h). If the digests of a step differ, the ranks gather the numbers, and throw a Mismatch that names
// the numbers and the ranks.
//
// Threads: only the Reducer's thread calls this class.
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
  // Gives the group's next model its number. All ranks must construct their models in the same order.
  explicit DataCheck(std::shared_ptr<ProcessGroup> group);
  // Takes the numbers of this rank's loader from `identity` from now on.
  void watch(DataIdentity identity) { identity_ = std::move(identity); }

  // Returns the digest for the note of synchronised step `step`.
  std::int64_t digest(std::int64_t step);
  // Judges a step's note. Call judge() in the order of the steps. If the ranks differ, judge() is collective and throws
  // the same Mismatch on every rank.
  void judge(const NotedStep& noted);

 private:
  struct Step {
    std::int64_t step;
    DataNumbers numbers;
  };

  std::shared_ptr<ProcessGroup> group_;
  int model_;
  DataIdentity identity_;
  // The steps whose notes are not judged yet. On a device a step's note is known two steps later.
  std::deque<Step> steps_;
};

}  // namespace lockstep
