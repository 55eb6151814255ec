// SPDX-License-Identifier: Apache-2.0
// `lockstep doctor`: what a rank would see here.
#pragma once

#include "launcher/flags/command_line.h"

namespace lockstep::launcher {

// Prints the report on stdout. Returns 0 if a rank could start here, 1 if something is wrong. Main thread.
int doctor_command(const DoctorOptions& options);

}  // namespace lockstep::launcher
