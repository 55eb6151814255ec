// SPDX-License-Identifier: Apache-2.0
// N ranks of a program as processes, to be started, watched and hurt.
#pragma once

#include <string>
#include <vector>

#include "tests/support/free_port.h"
#include "tests/support/process.h"

namespace lockstep::testing {

struct RankOptions {
  std::vector<std::string> command;
  Variables environment = {};
  // MASTER_PORT; 0: a free one, the same for all ranks.
  int master_port = 0;
};

// Ranks started by hand: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, no launcher.
// Same threads rule as Process.
class RankProcesses {
 public:
  RankProcesses(int world_size, const RankOptions& options);

  int size() const { return static_cast<int>(ranks_.size()); }
  Process& operator[](int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  void kill(int rank, int signal) { (*this)[rank].send(signal); }
  // Waits until every rank has written `text`; false as Process::await_output says.
  bool await_output(std::string_view text, const Deadline& deadline = Deadline::after(kPatience)) const;
  // Waits for every rank's end, in rank order.
  std::vector<Result> wait(const Deadline& deadline = Deadline::after(kPatience));

 private:
  std::vector<Process> ranks_;
};

}  // namespace lockstep::testing
