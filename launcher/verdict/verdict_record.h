// SPDX-License-Identifier: Apache-2.0
// The verdict on a job as data, and as JSON in --log-dir (docs/RUN.md has its keys).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/output/console.h"
#include "launcher/process/rank_end.h"
#include "lockstep/job/cause.h"

namespace lockstep::launcher {

struct VerdictRecord {
  enum class Outcome {
    finished,  // every rank ended with 0
    stopped,   // for a signal, or because the ranks agreed to
    failed,    // for `first`, or because the ranks disagree
    host_lost,
  };
  struct FirstFailure {
    RankFacts rank = {};
    std::optional<ExitStatus> ending = {};  // nothing: it had not ended when its host was lost
    std::optional<Cause> cause = {};        // what was said of it
    std::int64_t step = -1;                 // that it was in; -1: not known
  };

  Outcome outcome = Outcome::finished;
  int exit_code = 0;
  bool starts_again = false;  // the ranks, as --max-restarts has it
  std::string summary = {};   // the verdict in one line
  std::optional<FirstFailure> first = {};
  std::optional<std::pair<int, std::string>> lost_host = {};  // node rank and name
  std::string left_out_host = {};                             // the host that the next start leaves out; empty: none
  std::vector<RankEnd> consequences = {};                     // ranks that ended after the failure, in that order
};

// Pure. Text that is not UTF-8 is replaced.
std::string as_json(const VerdictRecord& record, const std::string& run_id, int generation);

// Before generation 0 takes an old verdict out of `log_dir`. Returns what writes the one of this generation there, and
// into the generation's folder, whole or not at all; `console` outlives it, and is told if that can't be done. Does
// nothing for an empty `log_dir`.
std::function<void(const VerdictRecord&)> verdict_writer(const std::string& log_dir, const std::string& run_id,
                                                         int generation, Console& console);

}  // namespace lockstep::launcher
