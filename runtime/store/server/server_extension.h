// SPDX-License-Identifier: Apache-2.0
// An extension of a store server: requests that the server passes on, and frames that the client didn't ask for.
//
// The operations from proto::kFirstExtensionCode on are an extension's. The store knows nothing of what they mean;
// runtime/membership has the one that there is.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "proto/request.h"
#include "runtime/store/frame.h"

namespace lockstep::store {

// The server, as its extension sees it. On the server's thread, but for post().
class ExtensionHost {
 public:
  virtual ~ExtensionHost() = default;
  // Sends a frame that the client didn't ask for, behind the answer to the request that is being served; nothing if the
  // client has gone.
  virtual void push(SessionId client, Frame frame) = 0;
  // The client's socket, for questions to the kernel; -1 if the client has gone.
  virtual int socket_of(SessionId client) const = 0;
  // Calls `act` once, after `delay`. An exception of it is logged.
  virtual void call_after(std::chrono::nanoseconds delay, std::function<void()> act) = 0;
  // Calls `act` soon on the server's thread, unless the server ends before. Any thread. Likewise.
  virtual void post(std::function<void()> act) = 0;
};

// Threads: the server's, but for attach().
class ServerExtension {
 public:
  struct Answer {
    Frame frame = {};
    // From now on the client's requests to the extension are served even while it reads no replies. Else the server
    // itself would be the cause of a client's silence.
    bool is_urgent = false;
    // The answer comes as a push of the extension's to this client, and `frame` is not sent.
    bool is_later = false;
  };

  virtual ~ServerExtension() = default;
  // Before all others, once: `host` is the server that this belongs to, and outlives it.
  virtual void attach(ExtensionHost& host) = 0;
  virtual Answer serve(SessionId client, const proto::Request& request) = 0;
  // A connection has ended, of any client, also one that sent the extension nothing.
  virtual void ended(SessionId client) = 0;
  // Connected clients that are given up, and roles of such that the extension hears of by another's connection:
  // TcpStoreServer::wait_until_idle() waits for none of these.
  struct GivenUp {
    std::vector<SessionId> clients = {};
    std::vector<std::string> roles = {};
    std::size_t size() const { return clients.size() + roles.size(); }
  };
  virtual GivenUp given_up() const = 0;
};

}  // namespace lockstep::store
