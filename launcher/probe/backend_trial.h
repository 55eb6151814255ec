// SPDX-License-Identifier: Apache-2.0
// Whether a backend works on this host: tried, not guessed.
#pragma once

#include <string>

#include "runtime/comm/backend.h"

namespace lockstep::probe {

struct Trial {
  int ranks = 0;       // so many ranks, as threads, have all-reduced together; 0: none have
  bool tried = false;  // false: it says itself that it can't serve such ranks
  std::string reason;  // why not, with the remedy; empty if it works
};

// With two ranks if it serves so many, else with one. Never starts MPI, which serves ranks of mpirun only: this process
// may be beside such a rank. Takes 5 s at most if the backend keeps its deadlines.
Trial try_backend(const Backend& backend);

}  // namespace lockstep::probe
