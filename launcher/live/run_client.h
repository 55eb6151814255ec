// SPDX-License-Identifier: Apache-2.0
// Finds this user's runs on this host, and asks them (run_socket.h).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/live/run_socket.h"
#include "lockstep/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

// A launcher that is stopped answers nobody; it is named, and all of them together are waited for no longer.
inline constexpr std::chrono::milliseconds kAnswerLimit{1000};

struct FoundRun {
  std::string socket = {};
  std::string run_id = {};             // of one that has not answered, as its socket's name has it
  pid_t pid = 0;                       // of the launcher
  std::optional<RunFacts> facts = {};  // nothing: it has not answered
};

// By run id, then node rank. Throws SystemError if /proc/net/unix can't be read.
std::vector<FoundRun> find_runs();

// The one whose run id is `name`, or begins with it; of a run with several launchers on this host that of the lowest
// node rank. Throws Error if there is none, or if it may be several runs. Pure.
FoundRun choose_run(const std::vector<FoundRun>& runs, std::string_view name);

// The same of a run that has answered; else Error says so.
FoundRun choose_run_that_answers(const std::vector<FoundRun>& runs, std::string_view name);
// "run-4711 (pid 12) has not answered within 1 s: ...".
std::string describe_silent(const FoundRun& run);

// Connects to a run's launcher and sends the request. Throws Error if it has ended or is another user's.
UniqueFd ask(const FoundRun& run, const RunRequest& request);

// What comes to the end; nothing if it has not come by the deadline, or is as long as `most` bytes.
std::optional<std::string> read_answer(int fd, std::size_t most, const Deadline& deadline);

// What it answers, to the end. Throws Error too if that does not come within kAnswerLimit.
std::string answer_to(const FoundRun& run, const RunRequest& request);

}  // namespace lockstep::launcher
