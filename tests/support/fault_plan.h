// SPDX-License-Identifier: Apache-2.0
// Faults of ranks, each at a step: the same thing goes wrong in the same place every time.
//
//   LOCKSTEP_TEST_FAULTS="kill:rank=1,step=5;stop:rank=2,step=3;delay:rank=0,step=4,ms=30000"
//
// kill: SIGKILL to itself. stop: SIGSTOP; goes on when somebody sends SIGCONT. delay: says "delayed at step 4" on
// stdout and waits for a SIGUSR2, `ms` at most.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::testing {

inline constexpr auto* kFaultsVariable = "LOCKSTEP_TEST_FAULTS";

struct Fault {
  enum class Kind { kill, stop, delay };
  Kind kind = Kind::kill;
  int rank = 0;
  int step = 0;
  std::chrono::milliseconds limit{0};  // of a delay
};

// Throws InvalidArgument with the part that is wrong.
std::vector<Fault> parse_faults(std::string_view text);

// What rank programs of tests call at each step.
class FaultPlan {
 public:
  // This rank's share of LOCKSTEP_TEST_FAULTS; without the variable there is none. Blocks SIGUSR2 if there is a delay
  // among them, so make it before there is a second thread. Throws InvalidArgument.
  explicit FaultPlan(int rank);

  // What is planned for this step happens now.
  void at(int step) const;

 private:
  std::vector<Fault> faults_;
};

}  // namespace lockstep::testing
