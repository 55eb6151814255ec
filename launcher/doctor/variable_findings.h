// SPDX-License-Identifier: Apache-2.0
// The variables LOCKSTEP_* that are set: what they say, and which of them nothing reads. Pure.
#pragma once

#include "launcher/doctor/finding.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher::doctor {

// A secret's value is not shown. One that nothing reads is a note, with the nearest name that something does.
Findings variable_findings(const Environment& environment);

}  // namespace lockstep::launcher::doctor
