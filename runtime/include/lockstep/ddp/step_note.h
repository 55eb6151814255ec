// SPDX-License-Identifier: Apache-2.0
// A step note is a few numbers that travel with bucket 0 of every synchronised step, so that all ranks know them
// without another collective.
//
// A field is a member and a line of kStepFields; nothing else knows the number of fields.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/comm/work.h"

namespace lockstep {

// One rank's values, and after the step all ranks' values, combined by each field's operation.
struct StepNote {
  // Writes to this rank's parameters since they were last found equal; of all ranks: 1 if equal, else 0.
  std::int64_t versions = 0;
  // A digest of the model's number and of the numbers that choose the samples; of all ranks: 1 if equal, else 0.
  std::int64_t data = 0;
  // A digest of the parameters' bytes, 0 if none is due; of all ranks: 1 if equal, else 0.
  std::int64_t digest = 0;
  // The number of terms in this rank's loss, and the loss summed over them, as runtime/ddp/loss_record.h splits it: for
  // GlobalBatch. Of all ranks: the sums.
  std::int64_t weight = 0;
  std::int64_t loss_whole = 0;
  std::int64_t loss_fraction = 0;
  // 1 if this rank asks to stop (comm/stop.h); the Reducer sets it. Of all ranks: 1 if some rank asks, else 0.
  std::int64_t stop = 0;
};

// A step's note, combined over all ranks, the same on each.
struct NotedStep {
  // The step; -1: none is known yet, and `of_all` means nothing: 0 would be "differs" in a field of `equal`.
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

// The note of all ranks. `work` is done, and was started with fields_of().
inline StepNote note_of_all(const Work& work) {
  StepNote note;
  for (std::size_t i = 0; i < kStepFields.size(); ++i) note.*kStepFields[i].value = work.note(i);
  return note;
}

}  // namespace lockstep
