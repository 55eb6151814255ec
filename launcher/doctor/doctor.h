// SPDX-License-Identifier: Apache-2.0
// `lockstep doctor`: the environment that a rank would have on this host.
#pragma once

#include "launcher/flags/command_line.h"

namespace lockstep::launcher {

// Prints the report on stdout. Returns 0 if a rank could start here, 1 if something is wrong. Main thread.
int doctor_command(const DoctorOptions& options);

}  // namespace lockstep::launcher
