// SPDX-License-Identifier: Apache-2.0
// How ranks that share a store become a roster: each claims its number, and the rank that completes the set releases
// all.
//
// Keys are "rendezvous/RUN_ID/RESTART/ROUND/...", so that nothing of another job or attempt is read. ROUND counts how
// often this process joined before, so that a program may leave its group and join again through the same store, or
// make a second one beside it. The verdict on a round is every rank's, so an attempt that failed has used up one round
// for all, also for those that come to it late.
#pragma once

#include <functional>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/rendezvous/roster.h"
#include "lockstep/store/store.h"
#include "runtime/rendezvous/identity/identity.h"

namespace lockstep::rendezvous {

struct Joined {
  Roster roster;
  std::string scope;  // "rendezvous/RUN_ID/RESTART/ROUND": a prefix for keys that only this meeting uses
};

// The prefix of the scopes of all starts of a job: "rendezvous/RUN_ID/".
std::string run_prefix(const std::string& run_id);
// The prefix of the scopes of one start of a job: "rendezvous/RUN_ID/RESTART/".
std::string attempt_prefix(const std::string& run_id, int restart_count);

// Called with the scope in which this process will have its place, before anybody can see that it has come: what is
// opened here, such as its link to the job's membership, every rank has opened once join() returns on any of them. What
// it throws, join() throws, unless the store knows why: the meeting has failed, or another process has the place. Where
// two threads of a process join as the same rank at once, it may be called again, for the round after.
using OnPlace = std::function<void(const std::string& scope)>;

// This process as a member, without its local rank if the launcher did not say it (-1).
Member self_member(const Identity& identity);

// Blocks until all ranks are here, and fills in what `identity` does not know yet: local rank, local world size, node
// rank. The first failure is every rank's: it is told through the store.
// Throws Mismatch (two processes are the same rank, or ranks disagree on the world size: both named with host and pid),
// Timeout (names the ranks that did not come, and who did), CorruptData, StoreError.
Joined join(store::Store& store, Identity& identity, const Member& self, const Deadline& deadline,
            const OnPlace& on_place = {});

// The claimant of `rank` in the first round, if there is one: for a process that finds the place taken.
std::string claimant_of(store::Store& store, const Identity& identity, int rank, const Deadline& deadline);

}  // namespace lockstep::rendezvous
