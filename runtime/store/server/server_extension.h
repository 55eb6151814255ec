// SPDX-License-Identifier: Apache-2.0
// A ServerExtension extends a store server: the extension serves the requests that the server passes on, and may send a
// client a frame that the client did not ask for.
//
// The server passes every operation whose code is at least proto::kFirstExtensionCode to the extension, and does not
// know the operation's meaning. The only extension is in runtime/membership.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "proto/request.h"
#include "runtime/store/frame.h"

namespace lockstep::store {

// ExtensionHost has the functions of a store server that the server's extension may call. Threads: only the server's
// thread may call the functions of ExtensionHost, except post().
class ExtensionHost {
 public:
  virtual ~ExtensionHost() = default;
  // Sends the client a frame that the client didn't ask for, after the answer to the request that is being served. Does
  // nothing if the client is gone.
  virtual void push(SessionId client, Frame frame) = 0;
  // Returns the descriptor of the client's socket, or -1 if the client is gone. The extension may read and set options
  // of the socket.
  virtual int socket_of(SessionId client) const = 0;
  // Calls `act` once, after `delay`. If `act` throws, logs the exception.
  virtual void call_after(std::chrono::nanoseconds delay, std::function<void()> act) = 0;
  // Calls `act` soon on the server's thread. If `act` throws, logs the exception. If the server ends before it has
  // called `act`, `act` is never called. Any thread may call post().
  virtual void post(std::function<void()> act) = 0;
};

// Threads: only the server's thread calls the functions of a ServerExtension, except attach().
class ServerExtension {
 public:
  struct Answer {
    Frame frame = {};
    // True if the server must serve the client's later requests to the extension even while the client reads no
    // replies. If the server held the client's requests back, the extension would believe that the client is silent.
    bool is_urgent = false;
    // True if the extension sends the answer later, by ExtensionHost::push(). If is_later is true, the server does not
    // send `frame`.
    bool is_later = false;
  };

  virtual ~ServerExtension() = default;
  // Called once, before all other functions. `host` is the server that has this extension, and outlives the extension.
  virtual void attach(ExtensionHost& host) = 0;
  virtual Answer serve(SessionId client, const proto::Request& request) = 0;
  // The server calls ended() after any client's connection has ended, even if the client sent no request to
  // the extension.
  virtual void ended(SessionId client) = 0;
  // GivenUp lists the clients that the extension has given up; TcpStoreServer::wait_until_idle() does not wait for
  // these clients. `clients` lists connected clients; `roles` lists the roles of clients that reach the extension
  // through another client's connection.
  struct GivenUp {
    std::vector<SessionId> clients = {};
    std::vector<std::string> roles = {};
    std::size_t size() const { return clients.size() + roles.size(); }
  };
  virtual GivenUp given_up() const = 0;
};

}  // namespace lockstep::store
