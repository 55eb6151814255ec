// SPDX-License-Identifier: Apache-2.0
// The backends that are not linked in: mpi and nccl, each of a plug-in that is loaded when it is asked for.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/internal_api.h"
#include "runtime/comm/backend.h"

namespace lockstep {

struct PluginStatus {
  std::string name;  // of the plug-in: "mpi", "cuda"
  std::string path;  // of its file; empty if there is none
  bool available = false;
  std::string reason;  // why not, with the remedy
};

// All of them, in the order `auto` tries them. Loads each, so it is for a program that answers and ends. Any thread.
LOCKSTEP_INTERNAL_API std::vector<PluginStatus> plugins();

// A backend for each: its why_not() loads the plug-in, and says what is missing and what to install.
std::vector<Backend> plugin_backends();

}  // namespace lockstep
