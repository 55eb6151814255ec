// SPDX-License-Identifier: Apache-2.0
// `lockstep snapshots`: what a job has saved, and what two snapshots differ in.
#pragma once

#include "launcher/flags/command_line.h"

namespace lockstep::launcher {

// Prints on stdout. Returns 0; 1 if a snapshot is damaged or of a later lockstep, or the two differ; 2 if it can't
// look, which it says. Main thread.
int snapshots_command(const SnapshotsOptions& options);

}  // namespace lockstep::launcher
