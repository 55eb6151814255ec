// SPDX-License-Identifier: Apache-2.0
// StepNote holds a few numbers that the ranks exchange together with bucket 0 of every synchronised step, so that the
// exchange needs no other collective.
//
// To add a field, add a member to StepNote and a line to kStepFields; no other code depends on the number of fields.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/comm/work.h"

namespace lockstep {

// Before a step StepNote holds one rank's values; after the step StepNote holds all ranks' values, combined by each
// field's operation (kStepFields).
struct StepNote {
  // The number of writes to this rank's parameters since the ranks' parameters were last found equal. After the step,
  // `versions` is 1 if the ranks' numbers of writes are equal, and 0 otherwise.
  std::int64_t versions = 0;
  // A digest of the number that the model has in its group, and of the numbers that choose the samples. After the step,
  // `data` is 1 if the ranks' digests are equal, and 0 otherwise.
  std::int64_t data = 0;
  // A digest of the parameters' bytes, or 0 if no digest is due in this step. After the step, `digest` is 1 if the
  // ranks' digests are equal, and 0 otherwise.
  std::int64_t digest = 0;
  // `weight` is the number of terms in this rank's loss; `loss_whole` and `loss_fraction` are the sum of these terms,
  // as an integer and a fraction (runtime/ddp/loss_record.h). `stop` is 1 if this rank asks to stop the training
  // (comm/stop.h), and 0 otherwise; the Reducer sets this field.
  std::int64_t weight = 0;
  std::int64_t loss_whole = 0;
  std::int64_t loss_fraction = 0;
  // 1 if this rank asks to stop the training (comm/stop.h), and 0 otherwise; the Reducer sets `stop`. After the step,
  // `stop` is 1 if some rank asks to stop, and 0 otherwise.
  std::int64_t stop = 0;
};

// NotedStep holds the number of a step and the step's StepNote, combined over all ranks and equal on each rank.
struct NotedStep {
  // The number of the step, or -1 if no step is known yet. If `step` is -1, the fields of `of_all` have no meaning: a 0
  // in a field with NoteOp::equal does not mean that the ranks differ.
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

// Returns the combined note of all ranks from `work`, a finished collective that was started with the fields that
// fields_of() returned.
inline StepNote note_of_all(const Work& work) {
  StepNote note;
  for (std::size_t i = 0; i < kStepFields.size(); ++i) note.*kStepFields[i].value = work.note(i);
  return note;
}

}  // namespace lockstep
