// SPDX-License-Identifier: Apache-2.0
// DataCheck checks that all ranks train the same model and read the same epoch of the same dataset in each step.
//
// A few numbers of the data loader decide which samples a rank reads, such as the dataset's length, the seed, the epoch
// and the batch size. These numbers of the data loader, and the number that DataCheck gives the model, must be equal on
// all ranks. The StepNote of every synchronised step has a digest of the numbers that must be equal on all ranks. If
// the ranks' digests of a step differ, the ranks exchange the numbers, and throw a Mismatch that names the ranks and
// the numbers that differ.
//
// Threads: only the Reducer's thread calls the functions of DataCheck.
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
  // Gives the new model the next free number of the group, which numbers its models in the order of construction. All
  // ranks must construct their models in the same order.
  explicit DataCheck(std::shared_ptr<ProcessGroup> group);
  // Makes every later step call `identity`, which returns the numbers of this rank's data loader.
  void watch(DataIdentity identity) { identity_ = std::move(identity); }

  // Returns the digest of this rank's numbers, for the StepNote of synchronised step `step`.
  std::int64_t digest(std::int64_t step);
  // Checks `noted`, the combined StepNote of a step. Call judge() in the order of the steps. If the ranks' digests
  // differ, judge() is collective and throws the same Mismatch on every rank.
  void judge(const NotedStep& noted);

 private:
  struct Step {
    std::int64_t step;
    DataNumbers numbers;
  };

  std::shared_ptr<ProcessGroup> group_;
  int model_;
  DataIdentity identity_;
  // The steps whose StepNote has not been checked by judge() yet. On a device a step's combined StepNote is known two
  // steps later.
  std::deque<Step> steps_;
};

}  // namespace lockstep
