// SPDX-License-Identifier: Apache-2.0
// `lockstep doctor -H`: a check whether a job could start on the hosts that a user names.
#pragma once

#include "launcher/doctor/finding.h"
#include "launcher/flags/command_line.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher::doctor {

// Starts a trial on each host through the remote shell, and has each of them connect to the others. The output of the
// remote shells goes to stderr. Waits for each host at most DoctorOptions::probe_timeout, twice. Throws
// InvalidArgument, SystemError. Call it while the process has one thread.
Findings examine_hosts(const DoctorOptions& options, const Environment& environment);

}  // namespace lockstep::launcher::doctor
