// SPDX-License-Identifier: Apache-2.0
// The first step in which runs that should be bit-identical differ, and the parameters that differ in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/bisect/digest_files.h"

namespace lockstep::launcher::bisect {

// A difference of one micro-batch's gradients, or of their sum.
struct Apart {
  int micro_batch = -1;  // -1: the sum
  std::string one, other;
  std::vector<std::size_t> parameters;  // indices of those that differ, in order of registration
  bool has_equal_end = false;           // the used parameters from some index to the last one are equal
};

struct FirstDifference {
  std::int64_t step = 0;
  int micro_batches_compared = 0;
  // Number of parameters whose gradients differ between micro-batches; an unused parameter has the same in all.
  std::size_t parameters_used = 0;
  std::vector<Apart> micro_batches;
  std::optional<Apart> sum;
};

struct Comparison {
  std::int64_t steps = 0;  // number of steps recorded more than once, up to the first difference
  std::int64_t first = 0, last = 0;
  int micro_batches_compared = 0;  // the smallest number in any step
  std::optional<FirstDifference> difference;
};

// Throws InvalidArgument if each step was recorded only once.
Comparison compare(const Recorded& recorded);
// Returns lines for people.
std::string as_text(const Recorded& recorded, const Comparison& comparison);

}  // namespace lockstep::launcher::bisect
