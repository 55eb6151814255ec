// SPDX-License-Identifier: Apache-2.0
// The LOCKSTEP_* variables that are set: their values, and those that nothing reads. Pure.
#pragma once

#include "launcher/doctor/finding.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher::doctor {

// The value of a secret is not shown. A variable that nothing reads is a note, with the nearest name that is read.
Findings variable_findings(const Environment& environment);

}  // namespace lockstep::launcher::doctor
