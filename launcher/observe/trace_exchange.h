// SPDX-License-Identifier: Apache-2.0
// The traces of hosts that share no folder, on their way to node rank 0 once the job is over: through the job's store,
// one file at a time, which node rank 0 asks for.
//
// Keys of node N, which are gone afterwards: traces/N/offer has the names of its files; traces/N/want/K, from 0, one
// that is asked for, or how it ends; traces/N/file/K its bytes.
//
// Threads: one. Failure: StoreError and Timeout of the store's; SystemError of a file.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::launcher {

// A file of the folder of traces: generation0/rank2.trace.
struct TraceFile {
  int generation = 0;
  int rank = 0;

  bool operator==(const TraceFile&) const = default;
  std::string name() const;
  // nullopt if the text is not such a name.
  static std::optional<TraceFile> of_name(std::string_view text);
};

// How long the other side is waited for.
struct ExchangeLimits {
  Deadline deadline = Deadline::never();
  // Asked every `look`; true ends the exchange. Null: nobody calls it off.
  std::function<bool()> is_called_off = {};
  std::chrono::nanoseconds look = std::chrono::milliseconds(200);
};

// A host other than the first calls it: answers until node rank 0 has what it wants. True if its timeline has this
// host's ranks; false too if it is called off.
bool give_traces(store::Store& store, int node_rank, const std::filesystem::path& folder,
                 const std::vector<TraceFile>& files, const ExchangeLimits& limits);

// Node rank 0's: takes the files that it lacks of those that the others offer into `folder`, until the deadline, or
// until it is called off.
class TakenTraces {
 public:
  TakenTraces(store::Store& store, int nodes);
  // Hosts that are silent, as lost ones are, are passed over, and said.
  void take(const std::filesystem::path& folder, const std::vector<TraceFile>& own, const ExchangeLimits& limits);
  // The timeline has the ranks of the hosts that were there, or of all, or of none: tells each.
  enum class Has { none, those_there, all };
  void end(Has timeline);

 private:
  // False if it was called off.
  bool take_of(int node, std::string_view offer, const std::filesystem::path& folder, const std::vector<TraceFile>& own,
               const ExchangeLimits& limits);

  struct Host {
    int next = 0;           // K of the next question
    bool is_there = false;  // and has given what it was asked for
  };

  store::Store& store_;
  std::vector<Host> hosts_;  // by node
};

}  // namespace lockstep::launcher
