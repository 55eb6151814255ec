// SPDX-License-Identifier: Apache-2.0
// ReplayRequest is what `lockstep replay` asks of a program's Snapshots: to use the replay's folder in place of the
// program's, to keep all snapshots there, to save the step at which the replay ends, and to end the process then.
//
// LOCKSTEP_REPLAY has the form STEP:FOLDER.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "lockstep/base/environment.h"

namespace lockstep {

struct ReplayRequest {
  std::int64_t step = 0;
  std::filesystem::path folder;

  // Throws InvalidArgument for a value of another form.
  static std::optional<ReplayRequest> read(const Environment& environment);
};

}  // namespace lockstep
