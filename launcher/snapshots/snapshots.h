// SPDX-License-Identifier: Apache-2.0
// `lockstep snapshots`: the snapshots that a job has saved, the differences of two, and the tensors of one as files.
#pragma once

#include "launcher/flags/command_line.h"

namespace lockstep::launcher {

// Prints to stdout. Returns 0; 1 if a snapshot is damaged or was written by a later lockstep, or the two differ; 2,
// after a message, if it can't read them. Main thread.
int snapshots_command(const SnapshotsOptions& options);

}  // namespace lockstep::launcher
