// The registry of backends. comm knows {name, is_available, create}; a backend is a folder that fills one in.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/process_group.h"
#include "runtime/rendezvous/identity.h"
#include "runtime/rendezvous/roster.h"
#include "runtime/store/store.h"

namespace lockstep {

// What a backend is given to build its group of. The group keeps the store alive.
struct GroupContext {
  rendezvous::Identity identity;
  rendezvous::Roster roster;
  std::shared_ptr<store::Store> store;  // with a prefix of this group's own
  std::chrono::nanoseconds timeout{};
  DeviceId device;
};

struct Backend {
  std::string name;
  // Empty if it can serve this roster, else the reason and the remedy, as a sentence.
  std::function<std::string(const GroupContext&)> why_not;
  // Collective. Throws BackendUnavailable, Timeout, PeerLost.
  std::function<std::shared_ptr<ProcessGroup>(const GroupContext&, const Deadline&)> create;
};

// The backends of this build, in the order `auto` tries them.
const std::vector<Backend>& backends();

}  // namespace lockstep
