// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of the test, each with its own process group: for logic, and for what ThreadSanitizer must see.
// Life and death of ranks belong to processes: rank_processes.h.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

// What a suite that serves every backend is built for. LOCKSTEP_TEST_RANKS_OF_HOST: so many ranks are on each
// host, and the rest on the last one.
#ifndef LOCKSTEP_TEST_BACKEND
#define LOCKSTEP_TEST_BACKEND "shm"
#endif
#ifndef LOCKSTEP_TEST_RANKS_OF_HOST
#define LOCKSTEP_TEST_RANKS_OF_HOST 0
#endif

namespace lockstep::testing {

struct RankThreadsOptions {
  std::string backend = LOCKSTEP_TEST_BACKEND;                  // by its name in backends()
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);  // of each collective
  // Ranks of each host, in order, as the group is told: they share memory, and no other. Empty: all are on one.
  std::vector<int> hosts = {};
  int ranks_of_host = LOCKSTEP_TEST_RANKS_OF_HOST;  // where `hosts` is empty; 0: all are on one
  // Of the start, for all to be in the group; else `limit`.
  std::optional<std::chrono::nanoseconds> start_timeout = {};
  std::chrono::nanoseconds limit =
      std::chrono::seconds(180);  // for all of it; then the program is ended, with a message
};

// The group is the body's own: when it returns, the rank leaves; when it throws, the group is unwound with it.
using RankBody = std::function<void(std::shared_ptr<ProcessGroup> group)>;

// Runs `body` on `ranks` threads, each with a group over one store, and returns when all have ended. If bodies throw,
// the first exception is thrown on, "rank 2: " before its text, as the same type of lockstep::Error. A PeerLost counts
// as a consequence: it is thrown on only if there is nothing else.
void run_ranks(int ranks, const RankBody& body, const RankThreadsOptions& options = {});

}  // namespace lockstep::testing
