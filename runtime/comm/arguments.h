// SPDX-License-Identifier: Apache-2.0
// Checks that every backend makes before it starts anything. Each throws InvalidArgument and has changed nothing.
#pragma once

#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// Memory there if there are elements, a count of at least 0, and where the group takes it.
void check_buffer(const ProcessGroup& group, std::string_view operation, const ConstBufferView& buffer);
// A rank of the group. `role`: "root", "source", "destination".
void check_rank(const ProcessGroup& group, std::string_view operation, std::string_view role, int rank);
// Both buffers as above, in one place, of one dtype, `whole` of size() times `part` elements. Their memory is apart, or
// `part` is exactly rank `in_place`'s part of `whole`; -1 if no place is allowed.
void check_parts(const ProcessGroup& group, std::string_view operation, const ConstBufferView& part,
                 const ConstBufferView& whole, int in_place);
// Both buffers of size() equal parts, in one place, of one dtype, apart in memory.
void check_exchange(const ProcessGroup& group, const ConstBufferView& input, const ConstBufferView& output);
// weight goes with sum of a floating-point dtype, and is at least 0.
void check_weight(const ProcessGroup& group, std::string_view operation, const ConstBufferView& buffer,
                  const ReductionOptions& options);
// The note's fields are no more than fit, and each has an operation.
void check_note(const ProcessGroup& group, std::string_view operation, std::span<const NoteField> note);
void check_tag(const ProcessGroup& group, std::string_view operation, int tag);

}  // namespace lockstep::comm
