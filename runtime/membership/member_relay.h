// SPDX-License-Identifier: Apache-2.0
// The relay of a host: its ranks' links lead to this process, their launcher, and what they say goes to the job's store
// over the launcher's one link. To the store's host it makes no difference but for the number of connections, and that
// a launcher that is lost takes its ranks along in the same moment.
//
// relay_table.h lists what it judges by itself, and what it leaves to the store.
//
// Threads: what says so, else any one at a time.
#pragma once

#include <memory>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/membership/relay_table.h"
#include "runtime/net/address.h"
#include "runtime/store/endpoint.h"
#include "runtime/store/server/server_extension.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::membership {

class MemberRelay {
 public:
  // Listens on loopback, for clients with the same secret and of the same run as `store`'s. Throws SystemError.
  explicit MemberRelay(const store::Endpoint& store, const MembershipOptions& options = {});
  ~MemberRelay();
  MemberRelay(const MemberRelay&) = delete;
  MemberRelay& operator=(const MemberRelay&) = delete;

  const net::HostPort& address() const { return server_.address(); }
  // Requests of members go over `link` from now on; nullptr: nowhere, as before the first call. It outlives the next
  // call. Before a link ends, and not on its thread.
  void connect(MemberLink* link);
  // For the link's calls. Its thread.
  void deliver(std::vector<ForwardedFrame> frames);
  void deliver(const MemberEvent& of_store);
  // Sends the heartbeats that have come, so that they precede what the link is given next. Any thread.
  void flush();

 private:
  class Extension;

  std::shared_ptr<Extension> extension_;
  store::TcpStoreServer server_;
};

}  // namespace lockstep::membership
