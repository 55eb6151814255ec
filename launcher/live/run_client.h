// SPDX-License-Identifier: Apache-2.0
// Finds this user's runs on this host, and sends them requests (run_socket.h).
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
#include "runtime/net/connection.h"

namespace lockstep::launcher {

// Limit for an answer, and for the answers of all launchers together. A stopped launcher does not answer, and is named.
inline constexpr std::chrono::milliseconds kAnswerLimit{1000};

struct FoundRun {
  std::string socket = {};
  std::string run_id = {};             // for a run that has not answered, the id in its socket's name
  pid_t pid = 0;                       // pid of the launcher
  std::optional<RunFacts> facts = {};  // nullopt: the launcher has not answered
};

// Returns runs by run id, then node rank. Throws SystemError if /proc/net/unix can't be read.
std::vector<FoundRun> find_runs();

// Returns the run whose id is `name` or begins with it; for a run with several launchers on this host, the launcher
// with the lowest node rank. Throws Error if no run matches, or several do. Pure.
FoundRun choose_run(const std::vector<FoundRun>& runs, std::string_view name);

// Returns the same for a run that has answered; throws Error for one that has not.
FoundRun choose_run_that_answers(const std::vector<FoundRun>& runs, std::string_view name);
// Returns "run-4711 (pid 12) has not answered within 1 s: ...".
std::string describe_silent(const FoundRun& run);

// Connects to a run's launcher and sends the request. Throws Error if the launcher has ended or is another user's.
UniqueFd ask(const FoundRun& run, const RunRequest& request);

// Reads until the other end closes. Returns nullopt if that has not happened by the deadline, or if `most` bytes have
// come.
std::optional<std::string> read_answer(net::Connection& launcher, std::size_t most, const Deadline& deadline);

// Returns the whole answer. Throws Error also if it is not complete within kAnswerLimit.
std::string answer_to(const FoundRun& run, const RunRequest& request);

}  // namespace lockstep::launcher
