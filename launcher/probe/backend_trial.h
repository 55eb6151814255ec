// SPDX-License-Identifier: Apache-2.0
// A trial of a backend on this host.
#pragma once

#include <string>

#include "runtime/comm/backend.h"

namespace lockstep::probe {

struct Trial {
  int ranks = 0;       // number of ranks, as threads, that have all-reduced together; 0: none
  bool tried = false;  // false: the backend reports that it can't serve such ranks
  std::string reason;  // reason of a failure, with the remedy; empty if the backend works
};

// Tries the backend with two ranks if it serves so many, else with one. It never starts MPI, which serves only ranks of
// mpirun: this process may run beside such a rank. Takes 5 s at most if the backend keeps its deadlines.
Trial try_backend(const Backend& backend);

}  // namespace lockstep::probe
