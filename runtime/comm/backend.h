// SPDX-License-Identifier: Apache-2.0
// The registry of backends. comm knows {name, why_not, create, must_agree, device}; a backend is a folder that fills
// one in.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/job/cause.h"
#include "lockstep/rendezvous/roster.h"
#include "lockstep/store/store.h"
#include "runtime/base/internal_api.h"
#include "runtime/comm/subgroups.h"
#include "runtime/membership/scopes.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/store/secret.h"

namespace lockstep {

// The arguments of a backend that builds a group. The group keeps the store alive.
struct GroupContext {
  rendezvous::Identity identity;
  rendezvous::Roster roster;
  std::shared_ptr<store::Store> store;  // with a prefix of this group's own
  // The words of the job's membership, and the name of this group's scope there.
  std::shared_ptr<membership::Scopes> scopes = std::make_shared<membership::Scopes>();
  std::string scope = {};
  std::chrono::nanoseconds timeout{};
  DeviceId device;
  std::string local_address;  // of this host on its way to the store, numeric; empty if the store is in this process
  std::shared_ptr<const store::Secret> secret = {};  // the job's; null if it has none
  // Throws PeerLost if the job's membership has lost a rank of the group. Any thread, at once; empty where there is no
  // membership.
  std::function<void()> check = {};
  // Gets the group's first cause before each throw of it, on the thread that throws, and what
  // GroupInternals::report_failure() is told: the job's launcher has what this rank knows before the program can do
  // anything about it. Any thread; may block for a moment; empty where nobody is to be told.
  std::function<void(const Cause&)> on_throw = {};
  // Makes the groups within the group; empty: it can't have any.
  GroupMaker make_group = {};
};

struct Backend {
  std::string name;
  // Empty if it can serve this roster, else the reason and the remedy, as a sentence.
  std::function<std::string(const GroupContext&)> why_not;
  // Collective. Throws BackendUnavailable, Timeout, PeerLost; InvalidArgument if a variable that it reads is wrong.
  std::function<std::shared_ptr<ProcessGroup>(const GroupContext&, const Deadline&)> create;
  // True for a plug-in: it may be there on some hosts only, so the ranks have to agree on it. For any other backend
  // why_not() says the same on each host.
  bool must_agree = false;
  // Where it computes: `auto` takes it for such a rank only.
  DeviceKind device = DeviceKind::cpu;
};

// The backends of this build, in the order `auto` tries them.
LOCKSTEP_INTERNAL_API const std::vector<Backend>& backends();

// The scope of the group's ranks that has this name within the group's.
LOCKSTEP_INTERNAL_API membership::ScopeAddress scope_of(const GroupContext& context, const std::string& name);

}  // namespace lockstep
