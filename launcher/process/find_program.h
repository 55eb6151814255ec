// SPDX-License-Identifier: Apache-2.0
// Which file a command names, as a shell would find it.
#pragma once

#include <string>

#include "lockstep/base/environment.h"

namespace lockstep::launcher {

struct FoundProgram {
  std::string path;     // empty if it can't be run
  int exit_code = 0;    // kExitNotFound or kExitNotExecutable
  std::string problem;  // one sentence, with the remedy
};

// A name with a slash is a path; another is looked for in PATH.
FoundProgram find_program(const std::string& name, const Environment& environment);

}  // namespace lockstep::launcher
