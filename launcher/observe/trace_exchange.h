// SPDX-License-Identifier: Apache-2.0
// The transfer of traces from hosts that share no folder to node rank 0 after the job: through the job's store, one
// file at a time, at node rank 0's request.
//
// Keys of node N, which are erased afterwards: traces/N/offer has the names of its files; traces/N/want/K, from 0, the
// name of a requested file, or the end of the exchange; traces/N/file/K the file's bytes.
//
// Threads: one. Failure: the store's StoreError and Timeout; SystemError for a file.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "launcher/observe/run_traces.h"
#include "lockstep/base/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::launcher {

// Limits for waiting for the other side.
struct ExchangeLimits {
  Deadline deadline = Deadline::never();
  // Called every `look`; true ends the exchange. Null: nothing ends it early.
  std::function<bool()> is_called_off = {};
  std::chrono::nanoseconds look = std::chrono::milliseconds(200);
};

// Answers requests on a host other than the first until node rank 0 has the files that it wants. Returns true if node
// rank 0's timeline has this host's ranks; false also if the exchange is called off.
bool give_traces(store::Store& store, int node_rank, const std::filesystem::path& folder,
                 const std::vector<TraceFile>& files, const ExchangeLimits& limits);

// Collects the other hosts' files on node rank 0: takes those that it lacks into `folder`, until the deadline, or until
// the exchange is called off.
class TakenTraces {
 public:
  TakenTraces(store::Store& store, int nodes);
  // Skips silent hosts, such as lost ones, and logs them.
  void take(const std::filesystem::path& folder, const std::vector<TraceFile>& own, const ExchangeLimits& limits);
  // The hosts whose ranks the timeline has: none, those that delivered, or all. Each host is told.
  enum class Has { none, those_there, all };
  void end(Has timeline);

 private:
  // Returns false if the exchange was called off.
  bool take_of(int node, std::string_view offer, const std::filesystem::path& folder, const std::vector<TraceFile>& own,
               const ExchangeLimits& limits);

  struct Host {
    int next = 0;           // K of the next request
    bool is_there = false;  // the host has delivered each requested file
  };

  store::Store& store_;
  std::vector<Host> hosts_;  // by node rank
};

}  // namespace lockstep::launcher
