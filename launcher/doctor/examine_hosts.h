// SPDX-License-Identifier: Apache-2.0
// `lockstep doctor -H`: whether a job could start on the hosts that a user names.
#pragma once

#include "launcher/doctor/finding.h"
#include "launcher/flags/command_line.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher::doctor {

// Starts a trial on each host through the remote shell, and has each try the others. What the remote shells write goes
// to stderr. Waits for each host at most DoctorOptions::probe_timeout, twice. Throws InvalidArgument, SystemError. The
// process must have one thread still.
Findings examine_hosts(const DoctorOptions& options, const Environment& environment);

}  // namespace lockstep::launcher::doctor
