// SPDX-License-Identifier: Apache-2.0
// A ServerExtension extends a store server: it serves requests that the server passes on, and sends clients frames that
// they did not ask for.
//
// Operations from proto::kFirstExtensionCode on belong to the extension, and the store does not know their meaning.
// runtime/membership has the only extension.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "proto/request.h"
#include "runtime/store/frame.h"

namespace lockstep::store {

// ExtensionHost is the server as its extension sees it. Threads: the server's thread calls all functions except post().
class ExtensionHost {
 public:
  virtual ~ExtensionHost() = default;
  // Sends a frame that the client didn't ask for, after the answer to the request that is being served. Does nothing if
  // the client is gone.
  virtual void push(SessionId client, Frame frame) = 0;
  // Returns the client's socket, for questions to the kernel, or -1 if the client is gone.
  virtual int socket_of(SessionId client) const = 0;
  // Calls `act` once, after `delay`, and logs an exception of `act`.
  virtual void call_after(std::chrono::nanoseconds delay, std::function<void()> act) = 0;
  // Calls `act` soon on the server's thread, and logs an exception of `act`. Does not call `act` if the server ends
  // before. Any thread may call post().
  virtual void post(std::function<void()> act) = 0;
};

// Threads: the server's thread calls all functions except attach().
class ServerExtension {
 public:
  struct Answer {
    Frame frame = {};
    // True if the client's requests to the extension are served from now on even while the client reads no replies.
    // Otherwise the server itself would be the cause of a client's silence.
    bool is_urgent = false;
    // True if the extension sends the answer later as a push to this client. `frame` is then not sent.
    bool is_later = false;
  };

  virtual ~ServerExtension() = default;
  // Called once, before all other functions. `host` is the server that has this extension, and outlives the extension.
  virtual void attach(ExtensionHost& host) = 0;
  virtual Answer serve(SessionId client, const proto::Request& request) = 0;
  // Called when any client's connection has ended, even if the client sent the extension no request.
  virtual void ended(SessionId client) = 0;
  // GivenUp lists clients for which TcpStoreServer::wait_until_idle() does not wait: connected clients that are given
  // up, and the roles of given-up clients that the extension hears of through another connection.
  struct GivenUp {
    std::vector<SessionId> clients = {};
    std::vector<std::string> roles = {};
    std::size_t size() const { return clients.size() + roles.size(); }
  };
  virtual GivenUp given_up() const = 0;
};

}  // namespace lockstep::store
