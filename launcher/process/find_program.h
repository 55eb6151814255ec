// SPDX-License-Identifier: Apache-2.0
// The file that a command names, found in the same way as a shell does.
#pragma once

#include <string>

#include "lockstep/base/environment.h"

namespace lockstep::launcher {

struct FoundProgram {
  std::string path;     // empty if it can't be run
  int exit_code = 0;    // kExitNotFound or kExitNotExecutable
  std::string problem;  // one sentence, with the remedy
};

// A name with a slash is a path; another name is looked up in PATH.
FoundProgram find_program(const std::string& name, const Environment& environment);

}  // namespace lockstep::launcher
