// Who a rank started here would be, and where it would meet the others.
#pragma once

#include <optional>

#include "launcher/doctor/finding.h"
#include "runtime/base/environment.h"
#include "runtime/rendezvous/identity.h"

namespace lockstep::launcher::doctor {

struct IdentityFindings {
  std::optional<rendezvous::Identity> identity;  // nothing if no rank could be made of these variables
  Findings findings;
};
// Reads variables only.
IdentityFindings identity_findings(const Environment& environment);

// Goes and looks: asks the store that is there already; tries the address at which this rank would host one. Takes a
// few seconds at most.
Findings meeting_findings(const Environment& environment, const rendezvous::Identity& identity);

// This host's addresses.
Findings address_findings();

}  // namespace lockstep::launcher::doctor
