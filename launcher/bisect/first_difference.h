// SPDX-License-Identifier: Apache-2.0
// The first step in which runs that should have the same bits have not, and what of it came apart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/bisect/digest_files.h"

namespace lockstep::launcher::bisect {

// A difference of one shard's gradients, or of their sum.
struct Apart {
  int shard = -1;  // -1: the sum
  std::string one, other;
  std::vector<std::size_t> parameters;  // that differ, in order of registration
  bool has_equal_end = false;           // those used from some point to the last one are equal
};

struct FirstDifference {
  std::int64_t step = 0;
  int shards_compared = 0;
  std::size_t parameters_used = 0;  // whose gradients are not the same in all shards, as those of unused ones are
  std::vector<Apart> shards;
  std::optional<Apart> sum;
};

struct Comparison {
  std::int64_t steps = 0;  // that were recorded more than once, up to the first difference
  std::int64_t first = 0, last = 0;
  int shards_compared = 0;  // in the step that had the fewest
  std::optional<FirstDifference> difference;
};

// InvalidArgument if no step was recorded twice.
Comparison compare(const Recorded& recorded);
// Lines for people.
std::string as_text(const Recorded& recorded, const Comparison& comparison);

}  // namespace lockstep::launcher::bisect
