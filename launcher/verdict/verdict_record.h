// SPDX-License-Identifier: Apache-2.0
// The verdict on a job as data, and as JSON in --log-dir (docs/RUN.md lists its keys).
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
    stopped,   // by a signal, or because the ranks agreed to stop
    failed,    // because of `first`, or because the ranks disagree
    host_lost,
  };
  struct FirstFailure {
    RankFacts rank = {};                    // rank -1: all ranks, with the same error
    std::optional<ExitStatus> ending = {};  // nullopt: it was running when its host was lost
    std::optional<Cause> cause = {};        // the report about it
    std::int64_t step = -1;                 // its step at that time; -1: not known
  };

  Outcome outcome = Outcome::finished;
  int exit_code = 0;
  bool starts_again = false;     // --max-restarts starts the ranks again
  std::string summary = {};      // the verdict in one line
  std::int64_t saved_step = -1;  // of the last snapshot; -1: none is known
  std::string hint = {};         // how to resume, if the ranks do not start again; empty: nothing is known to be saved
  std::optional<FirstFailure> first = {};
  std::optional<std::pair<int, std::string>> lost_host = {};  // node rank and name
  std::string left_out_host = {};                             // the host that the next start leaves out; empty: none
  std::vector<RankEnd> consequences = {};                     // ranks that ended after the failure, in that order
};

// Returns JSON, in which text that is not UTF-8 is replaced. Pure.
std::string as_json(const VerdictRecord& record, const std::string& run_id, int start);

// Removes an old verdict from `log_dir` before start 1. Returns a function that writes this start's verdict
// there, and into the start's folder, each file whole or not at all. `console` outlives the function and reports
// errors. Does nothing for an empty `log_dir`.
std::function<void(const VerdictRecord&)> verdict_writer(const std::string& log_dir, const std::string& run_id,
                                                         int start, Console& console);

// Corrects the verdict of `start`, after which the ranks should have been started again and were not: `exit_code` is
// the job's, and the summary then ends with `why`. Does nothing for an empty `log_dir`, or if no verdict was written.
void end_after_verdict(const std::string& log_dir, int start, int exit_code, const std::string& why, Console& console);

}  // namespace lockstep::launcher
