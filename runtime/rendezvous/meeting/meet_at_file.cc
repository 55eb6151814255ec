// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/net/backoff.h"
#include "runtime/rendezvous/meeting/file_meeting.h"
#include "runtime/rendezvous/meeting/rendezvous_methods.h"

namespace lockstep::rendezvous {
namespace {

std::string attempt(const Identity& identity) { return fmt::format("{}/{}", identity.run_id, identity.restart_count); }

// A file that other hosts can't see is for ranks of this one.
net::HostPort listen_address(const MeetingPlan& plan, const Identity& identity) {
  const bool wished = !plan.interface_wishes.variables().empty();
  const bool here = is_one_host(identity) || (!wished && !is_several_hosts(identity) && !is_on_network(plan.path));
  return here ? net::HostPort{"127.0.0.1", 0} : outward_address(plan);
}

std::shared_ptr<OwnedStore> connect_via_file(const MeetingPlan& plan, const Identity& identity,
                                             const Deadline& deadline) {
  RefusedNote refused;
  for (net::Backoff backoff;;) {
    const MeetingNote note = await_note(plan.path, attempt(identity), refused, deadline);
    if (note.boot_id != boot_id() && net::is_loopback(note.address)) {
      throw InvalidArgument(
          fmt::format("init_method file://{}: {} is on host {}, but rank 0's store on host {} serves only rank 0's "
                      "host; set GLOO_SOCKET_IFNAME on rank 0 to the interface that the other hosts reach, or pass "
                      "init_method tcp://host:port; if rank 0's run is over, remove the file",
                      plan.path, whoami(identity), host_name(), note.host));
    }
    std::string failure;
    if (auto owned = connect_via_advertisement(note, plan, identity, deadline.sooner(kProbe), failure)) return owned;
    if (failure == kUsedStore) refused = {note.token, failure};
    if (failure.starts_with("another run")) refused = {note.token, "leads to no store of that run"};
    if (!backoff.pause(deadline)) {
      throw Timeout(
          fmt::format("init_method file://{}: this rank did not reach the store at {}, the address that {} wrote into "
                      "the file, {}: {}; look at rank 0's output",
                      plan.path, note.address.to_string(), note.writer(), deadline.progress(), failure));
    }
  }
}

}  // namespace

std::shared_ptr<OwnedStore> meet_at_file(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  if (identity.rank != 0) return connect_via_file(plan, identity, deadline);
  auto [owned, advertisement] = host_advertised_store(listen_address(plan, identity), plan, identity, deadline);
  MeetingNote note = note_of_this_process(advertisement.address, attempt(identity));
  static_cast<StoreAdvertisement&>(note) = advertisement;
  owned->announcement = std::make_shared<FileMeeting>(plan.path, note);
  return owned;
}

}  // namespace lockstep::rendezvous
