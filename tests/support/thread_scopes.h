// SPDX-License-Identifier: Apache-2.0
// Scopes (membership/scopes.h) of ranks that are threads of a test, which have no membership.
#pragma once

#include <memory>

#include "lockstep/store/store.h"
#include "runtime/membership/scopes.h"

namespace lockstep::testing {

// Of one rank: what a rank says, all ranks with the same store hear, in one order. Words are delivered on a
// thread of this rank's, as a member link does.
std::shared_ptr<membership::Scopes> scopes_over(store::Store& store);

}  // namespace lockstep::testing
