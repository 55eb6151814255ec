// SPDX-License-Identifier: Apache-2.0
// TorchStoreClient is a client of PyTorch's store server, which torchrun's agent hosts. The client has the four
// requests that a rendezvous at this server needs.
//
// The server may be current or of PyTorch 1.13; the greeting finds out the server's version. A client sends one request
// at a time. A connection with an error is closed and never used again, so a late reply is never taken for the reply to
// another request.
//
// Threads: one thread at a time uses a client.
// Errors: calls throw StoreError, with the server's address, if the server can't be reached or doesn't answer.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "proto/protocol.h"
#include "proto/request.h"
#include "runtime/net/address.h"
#include "runtime/store/client/tcp_connection.h"

namespace lockstep::store {

class TorchStoreClient {
 public:
  // Connects, and retries until the deadline while nobody answers. Throws Timeout, which names the address and what was
  // tried so far.
  TorchStoreClient(const net::HostPort& server, const Deadline& deadline);

  // Sets the value of `key`, and returns when the server has the value.
  void set(std::string_view key, std::string_view value);
  // Waits until `key` exists and returns its value. Throws Timeout, which names the key. If the key is erased at that
  // moment, a current server returns an empty value. A server of 1.13 closes the connection in this case, and get()
  // throws StoreError.
  std::string get(std::string_view key, const Deadline& deadline);
  void erase(std::string_view key);
  std::int64_t num_keys();

 private:
  void connect(const Deadline& deadline, Expect expect);
  void greet(TcpConnection& connection, const Deadline& deadline) const;
  // Runs `body` on the connection, with the deadline of one answer. `what` names the call in messages.
  void exchange(const std::string& what, const std::function<void(TcpConnection&, const Deadline&)>& body);
  // Sends requests, of which only the last request has an answer, and returns the number in that answer.
  std::int64_t ask(const std::string& what, std::initializer_list<proto::Request> requests);
  std::string bytes_of(const proto::Request& request) const;
  std::string description() const;

  const net::HostPort server_;
  proto::Dialect dialect_ = proto::Dialect::current;
  std::optional<TcpConnection> connection_;  // empty after an error, until the next request
};

}  // namespace lockstep::store
