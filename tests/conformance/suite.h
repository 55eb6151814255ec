// SPDX-License-Identifier: Apache-2.0
// One suite of collectives against every backend. Called on every rank of a group; throws std::runtime_error, with
// what was wrong, at the first value that is not as it must be, so that it runs in threads and in processes alike.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/comm/process_group.h"

namespace lockstep::testing {

// Where the buffers of a check are.
enum class Memory {
  user,    // the host's
  arena,   // the group's, where it computes
  device,  // its device's, as any program takes it
};

// Every collective for one dtype, with counts that are empty, odd, small and larger than a window.
void check_dtype(ProcessGroup& group, DType dtype, Memory memory);
// Every collective in the user's memory for these counts, each buffer `shift` elements behind the start of a cache
// line.
void check_counts(ProcessGroup& group, DType dtype, std::span<const std::int64_t> counts, std::size_t shift);
// Weighted sums, their totals, and weights that are all 0.
void check_weights(ProcessGroup& group, Memory memory);
void check_shards(ProcessGroup& group, Memory memory);
// Notes that ride with an all-reduce, with a weight and without one: what each field comes to on every rank.
void check_notes(ProcessGroup& group, Memory memory);
// Collectives started before earlier ones are done, more of them than the backend holds at once.
void check_overlap(ProcessGroup& group, Memory memory);
// Messages between all pairs: sizes, tags out of order, to oneself.
void check_messages(ProcessGroup& group, Memory memory);
// Arguments that are refused, after which the group still works.
void check_refusals(ProcessGroup& group);
// Texts of any length; arenas that are zero, aligned and survive others.
void check_setup(ProcessGroup& group);
// All of the above.
void check_everything(ProcessGroup& group);

}  // namespace lockstep::testing
