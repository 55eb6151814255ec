// SPDX-License-Identifier: Apache-2.0
// Writes digests of a step in fixed micro-batches, for a comparison with another run: LOCKSTEP_STEP_DIGESTS names the
// folder, and `lockstep bisect-step` reads it.
//
// A rank appends to a file of its own, rank<R>-of-<N>.jsonl: a line when it begins, with the parameters in order of
// registration, and a line for each step. The digests are XXH3 of 64 bits, in hexadecimal: of the gradients of each of
// its micro-batches before they are added up, and of the gradients at the end of the step.
//
//   {"format": "lockstep step digests 2", "rank": 0, "ranks": 3, "micro_batches": 8, "global_batch": 64,
//    "parameters": ["a", "b"]}
//   {"step": 5, "micro_batches": {"0": ["2d06800538d394c2", "..."], "1": [...]}, "sum": ["...", "..."]}
//
// Threads: the Reducer's.
// Failure: SystemError with the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/reproducible.h"
#include "runtime/base/unique_fd.h"

namespace lockstep {

class StepDigests {
 public:
  // Opens the file, and makes the folder. Null if `folder` is empty.
  static std::unique_ptr<StepDigests> open(const std::string& folder, const Reproducible& reproducible, int rank,
                                           int world, std::span<const ParameterSpec> specs);

  // Adds a parameter's gradient, complete, of micro-batch number `micro_batch` among all.
  void micro_batch(int micro_batch, std::size_t parameter, std::span<const std::byte> gradient);
  // Adds a parameter's gradient at the end of the step.
  void sum(std::size_t parameter, std::span<const std::byte> gradient);
  // Writes the step's line. `step` also counts the steps of earlier runs.
  void end_step(std::int64_t step);

 private:
  StepDigests(std::string file, std::size_t parameters);
  void end_cut_line();
  void write(const std::string& line);

  std::string file_;
  UniqueFd fd_;
  std::map<int, std::vector<std::uint64_t>> micro_batches_;  // by number, and parameter
  std::vector<std::uint64_t> sums_;
};

}  // namespace lockstep
