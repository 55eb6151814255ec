// SPDX-License-Identifier: Apache-2.0
// StepNote is a few numbers that travel with bucket 0 of every synchronised step, so that all ranks know these numbers
// without another collective.
//
// To add a field, add a member to StepNote and a line to kStepFields: no other code depends on the number of fields.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/comm/work.h"

namespace lockstep {

// StepNote holds one rank's values, and after the step the values of all ranks, combined by each field's operation.
struct StepNote {
  // The number of writes to this rank's parameters since the ranks' parameters were last found equal. Combined: 1 if
  // the ranks' numbers are equal, else 0.
  std::int64_t versions = 0;
  // A digest of the model's number and of the numbers that choose the samples. Combined: 1 if the ranks' digests are
  // equal, else 0.
  std::int64_t data = 0;
  // A digest of the parameters' bytes, or 0 if no digest is due. Combined: 1 if the ranks' digests are equal, else 0.
  std::int64_t digest = 0;
  // The number of terms in this rank's loss, and the loss summed over these terms, as runtime/ddp/loss_record.h splits
  // the sum. Combined: the sums over the ranks, for GlobalBatch.
  std::int64_t weight = 0;
  std::int64_t loss_whole = 0;
  std::int64_t loss_fraction = 0;
  // 1 if this rank asks to stop (comm/stop.h); the Reducer sets this field. Combined: 1 if some rank asks to stop,
  // else 0.
  std::int64_t stop = 0;
};

// NotedStep is a step's note, combined over all ranks and equal on each rank.
struct NotedStep {
  // The number of the step. If the number is -1, no step is known yet, and `of_all` has no meaning; a field of
  // NoteOp::equal is then 0, which does not mean that the ranks differ.
  std::int64_t step = -1;
  StepNote of_all = {};
};

struct StepField {
  std::int64_t StepNote::*value;
  NoteOp op;
};
inline constexpr std::array kStepFields{
    StepField{&StepNote::versions, NoteOp::equal}, StepField{&StepNote::data, NoteOp::equal},
    StepField{&StepNote::digest, NoteOp::equal},   StepField{&StepNote::weight, NoteOp::sum},
    StepField{&StepNote::loss_whole, NoteOp::sum}, StepField{&StepNote::loss_fraction, NoteOp::sum},
    StepField{&StepNote::stop, NoteOp::any},
};
static_assert(kStepFields.size() <= kMostNoteFields);

inline std::vector<NoteField> fields_of(const StepNote& own) {
  std::vector<NoteField> fields;
  fields.reserve(kStepFields.size());
  for (const StepField& field : kStepFields) fields.push_back({field.op, own.*field.value});
  return fields;
}

// Returns the note of all ranks from `work`, which is done and was started with fields_of().
inline StepNote note_of_all(const Work& work) {
  StepNote note;
  for (std::size_t i = 0; i < kStepFields.size(); ++i) note.*kStepFields[i].value = work.note(i);
  return note;
}

}  // namespace lockstep
