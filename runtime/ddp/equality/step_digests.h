// SPDX-License-Identifier: Apache-2.0
// StepDigests writes digests of the gradients of each step to files, so that two runs in fixed micro-batches can be
// compared. The environment variable LOCKSTEP_STEP_DIGESTS names the folder of the files, and `lockstep bisect-step`
// reads this folder.
//
// Each rank appends to its own file, rank<R>-of-<N>.jsonl. Each run adds to the file a first line with the parameters'
// names in order of registration, and a line for each step. The digests are XXH3 of 64 bits, in hexadecimal. A step's
// line has a digest of each gradient in each micro-batch of the rank, before the micro-batches are added up, and a
// digest of each gradient at the end of the step.
//
//     {"format": "lockstep step digests 2", "rank": 0, "ranks": 3, "micro_batches": 8, "global_batch": 64,
//      "parameters": ["a", "b"]}
//     {"step": 5, "micro_batches": {"0": ["2d06800538d394c2", "..."], "1": [...]}, "sum": ["...", "..."]}
//
// Threads: only the Reducer's thread calls the functions of StepDigests.
// Failure: throws SystemError with the file's name.
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
  // Makes the folder and opens this rank's file. Returns null if `folder` is empty.
  static std::unique_ptr<StepDigests> open(const std::string& folder, const Reproducible& reproducible, int rank,
                                           int world, std::span<const ParameterSpec> specs);

  // Adds the digest of a parameter's complete gradient in one micro-batch to the step's line. `micro_batch` is the
  // micro-batch's number among all ranks' micro-batches.
  void micro_batch(int micro_batch, std::size_t parameter, std::span<const std::byte> gradient);
  // Adds the digest of a parameter's gradient at the end of the step to the step's line.
  void sum(std::size_t parameter, std::span<const std::byte> gradient);
  // Writes the step's line, which replaces the line of an earlier computation of the step. `step` also counts the steps
  // of earlier runs.
  void end_step(std::int64_t step);

 private:
  StepDigests(std::string file, std::size_t parameters);
  void end_cut_line();
  void write(const std::string& line);

  std::string file_;
  UniqueFd fd_;
  std::map<int, std::vector<std::uint64_t>> micro_batches_;  // the digests by micro-batch and parameter
  std::vector<std::uint64_t> sums_;
  std::int64_t last_step_ = -1;
  std::int64_t last_line_ = 0;  // the position of last_step_'s line in the file
};

}  // namespace lockstep
