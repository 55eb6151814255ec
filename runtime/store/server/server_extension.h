// SPDX-License-Identifier: Apache-2.0
// An extension of a store server: requests that the server passes on, and frames that a client gets without asking.
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

// The server, as its extension sees it. Threads: the server's, except post().
class ExtensionHost {
 public:
  virtual ~ExtensionHost() = default;
  // Sends a frame that the client didn't ask for, after the answer to the request that is being served; does nothing if
  // the client is gone.
  virtual void push(SessionId client, Frame frame) = 0;
  // The client's socket, for questions to the kernel; -1 if the client is gone.
  virtual int socket_of(SessionId client) const = 0;
  // Calls `act` once, after `delay`, and logs an exception of it.
  virtual void call_after(std::chrono::nanoseconds delay, std::function<void()> act) = 0;
  // Calls `act` soon on the server's thread, and logs an exception of it, unless the server ends before. Any thread.
  virtual void post(std::function<void()> act) = 0;
};

// The extension. Threads: the server's, except attach().
class ServerExtension {
 public:
  struct Answer {
    Frame frame = {};
    // Whether the client's requests to the extension are served from now on even while it reads no replies. Otherwise
    // the server itself would be the cause of a client's silence.
    bool is_urgent = false;
    // Whether the extension sends the answer later as a push to this client; `frame` is then not sent.
    bool is_later = false;
  };

  virtual ~ServerExtension() = default;
  // Called once, before all other functions: `host` is the server that has this extension, and outlives it.
  virtual void attach(ExtensionHost& host) = 0;
  virtual Answer serve(SessionId client, const proto::Request& request) = 0;
  // Called when any client's connection has ended, also that of a client which sent the extension nothing.
  virtual void ended(SessionId client) = 0;
  // Clients for which TcpStoreServer::wait_until_idle() does not wait: connected ones that are given up, and the roles
  // of given-up clients that the extension hears of through another connection.
  struct GivenUp {
    std::vector<SessionId> clients = {};
    std::vector<std::string> roles = {};
    std::size_t size() const { return clients.size() + roles.size(); }
  };
  virtual GivenUp given_up() const = 0;
};

}  // namespace lockstep::store
