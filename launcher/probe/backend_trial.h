// Whether a backend works on this host: tried, not guessed.
#pragma once

#include <string>

#include "runtime/comm/backend.h"

namespace lockstep::probe {

struct Trial {
  int ranks = 0;       // so many ranks, as threads, have all-reduced together; 0: it doesn't work
  std::string reason;  // why not, with the remedy; empty if it works
};

// With two ranks if it serves so many, else with one. Takes 5 s at most if the backend keeps its deadlines.
Trial try_backend(const Backend& backend);

}  // namespace lockstep::probe
