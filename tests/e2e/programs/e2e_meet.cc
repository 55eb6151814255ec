// SPDX-License-Identifier: Apache-2.0
// A rank that meets the others, says whom it met, and leaves: rendezvous without a process group. Its one argument, if
// any, is the init_method.
#include <fmt/format.h>

#include <cstdio>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/join.h"
#include "runtime/rendezvous/meeting/meet.h"

namespace rendezvous = lockstep::rendezvous;

int main(int count, char** arguments) {
  try {
    const auto environment = lockstep::Environment::of_process();
    const auto deadline =
        lockstep::Deadline::after(std::chrono::seconds(environment.get_int("LOCKSTEP_TIMEOUT").value_or(30)));
    const auto method = rendezvous::parse_init_method(count > 1 ? arguments[1] : "");
    auto identity = rendezvous::identify(environment, {.rank = method.rank, .world_size = method.world_size});
    rendezvous::ask_launcher(identity, deadline);
    const auto plan = rendezvous::plan_meeting(identity, method, environment, lockstep::ancestors_of_this_process());
    const auto meeting = rendezvous::meet(plan, identity, deadline);
    const auto joined = rendezvous::join(*meeting.store, identity, rendezvous::self_member(identity), deadline);
    fmt::print("rank {}/{} (local {}/{}, node {}) from {}, store {}, {}, hosts {}\n", identity.rank,
               identity.world_size, identity.local_rank, identity.local_world_size, identity.node_rank.value_or(-1),
               identity.source, meeting.address, meeting.endpoint && meeting.endpoint->secret ? "secret" : "open",
               rendezvous::describe_hosts(joined.roster));
    return 0;
  } catch (const lockstep::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
