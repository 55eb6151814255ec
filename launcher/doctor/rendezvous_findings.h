// SPDX-License-Identifier: Apache-2.0
// The rank that a process started here would have, the address at which it would meet the others, and whether that
// address can be reached.
#pragma once

#include "launcher/doctor/finding.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher::doctor {

// Reads the variables, then tries: asks a store that is already running, tests the address at which this rank would
// host one, asks the launcher's PMIx server for the number of ranks. Takes a few seconds at most.
Findings rendezvous_findings(const Environment& environment);

}  // namespace lockstep::launcher::doctor
