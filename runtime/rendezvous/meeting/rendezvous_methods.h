// SPDX-License-Identifier: Apache-2.0
// The ways to meet, a file each (meet_*.cc), and what they share. For meet.cc only.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/meeting/owned_store.h"
#include "runtime/rendezvous/records.h"

namespace lockstep::rendezvous {

// All throw what meet() throws.
std::shared_ptr<OwnedStore> meet_at_launchers_store(const MeetingPlan& plan, const Identity& identity,
                                                    const Deadline& deadline);
std::shared_ptr<OwnedStore> meet_through_agent(const MeetingPlan& plan, const Identity& identity,
                                               const Deadline& deadline);
std::shared_ptr<OwnedStore> meet_over_local_socket(const MeetingPlan& plan, const Identity& identity,
                                                   const Deadline& deadline);
std::shared_ptr<OwnedStore> meet_over_pmix(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline);
std::shared_ptr<OwnedStore> meet_at_file(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline);
std::shared_ptr<OwnedStore> meet_at_address(const MeetingPlan& plan, const Identity& identity,
                                            const Deadline& deadline);

// Time limit for a store that must be there already: its host was started before this process.
inline constexpr std::chrono::seconds kPresent{30};
// To ask a store that is there one thing.
inline constexpr std::chrono::seconds kProbe{3};
inline constexpr std::string_view kUsedStore =
    "leads to the store of a group that this process has left: rank 0 has not left it yet";

// "rank 2/4", for the beginnings of messages.
std::string whoami(const Identity& identity);
// Whether the launcher said that all ranks are on this host, or that they are not.
bool is_one_host(const Identity& identity);
bool is_several_hosts(const Identity& identity);
// Debian gives a host's own name the address 127.0.1.1 on that host, and nowhere else. Says so, of the plan's address,
// which is `address` here, and where the store listens instead.
std::string describe_hidden_name(const MeetingPlan& plan, const std::string& address, std::string_view listens);
// Where rank 0 listens if nobody named an address: the interface that choose_interface() takes.
net::HostPort outward_address(const MeetingPlan& plan);

// A store that rank 0 hosts, and what it tells the others of it: of a secret that the ranks were given, nothing.
struct AdvertisedStore {
  std::shared_ptr<OwnedStore> owned;
  StoreAdvertisement advertisement;
};
AdvertisedStore host_advertised_store(const net::HostPort& listen, const MeetingPlan& plan, const Identity& identity,
                                      const Deadline& deadline);
// The secret of the store that `advertisement` leads to. Throws Mismatch if rank 0 was given one and this rank not, or
// the other way round: then whoever wrote the advertisement could take this rank over.
store::Secret secret_of(const StoreAdvertisement& advertisement, const MeetingPlan& plan, const Identity& identity);

// Connects to the store that `advertisement` names, if it holds the advertisement's token and this rank has not used it
// before; else null, and `failure` says why.
std::shared_ptr<OwnedStore> connect_via_advertisement(const StoreAdvertisement& advertisement, const MeetingPlan& plan,
                                                      const Identity& identity, const Deadline& deadline,
                                                      std::string& failure);
// As connect_to_store(); a failure's message names the rank, the address, its source and `remedy`.
std::shared_ptr<OwnedStore> connect_to_job_store(const store::Endpoint& endpoint, const MeetingPlan& plan,
                                                 const Identity& identity, const Deadline& deadline,
                                                 std::string_view remedy);
// `error`, with what the attempts before it met.
Timeout with_history(const Timeout& error, const std::string& failure);
// For a rank 0 whose place is taken: by another rank 0, if the store there says so.
[[noreturn]] void report_taken(const store::Endpoint& there, const MeetingPlan& plan, const Identity& identity);

}  // namespace lockstep::rendezvous
