// SPDX-License-Identifier: Apache-2.0
// Digests of the values that runs computed step by step, read from the files that ranks write with
// LOCKSTEP_STEP_DIGESTS (runtime/ddp/equality/step_digests.h has the format).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace lockstep::launcher::bisect {

// The digests of one rank's run, by parameter.
struct Digests {
  std::string who;  // "rank 1 of 3 (runs/b)"
  std::vector<std::string> values;
};

struct Step {
  std::map<int, std::vector<Digests>> micro_batches;  // by micro-batch number; one of each run
  std::vector<Digests> sums;                          // one for each rank of each run
};

struct Recorded {
  std::vector<std::string> parameters;  // in order of registration
  int micro_batches = 0;
  std::int64_t global_batch = 0;
  std::map<std::int64_t, Step> steps;
};

// Reads all digest files of the folders. A last line that was cut off is left out. Throws InvalidArgument if a folder
// has none, or files of runs that can't be compared (other parameters, another number of micro-batches); CorruptData
// for a file of another kind.
Recorded read_digests(std::span<const std::filesystem::path> folders);

}  // namespace lockstep::launcher::bisect
