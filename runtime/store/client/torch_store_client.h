// SPDX-License-Identifier: Apache-2.0
// A client of PyTorch's store server, as torchrun's agent hosts one: the four requests that a rendezvous there needs.
//
// The server may be current or of PyTorch 1.13; the greeting finds out which. One request at a time. A connection on
// which something went wrong is closed and never used again, so a late reply is never taken for another request's.
//
// Threads: one at a time.
// Errors: StoreError, with the server's address, if the server can't be reached or doesn't answer.
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
  // Connects, and retries until the deadline while nobody answers. Timeout names the address and what was tried.
  TorchStoreClient(const net::HostPort& server, const Deadline& deadline);

  // Returns when the server has the value.
  void set(std::string_view key, std::string_view value);
  // Waits until `key` exists and returns its value. Timeout names the key. If the key is erased at that moment, a
  // current server returns an empty value, and a server of 1.13 closes the connection: StoreError.
  std::string get(std::string_view key, const Deadline& deadline);
  void erase(std::string_view key);
  std::int64_t num_keys();

 private:
  void connect(const Deadline& deadline, Expect expect);
  void greet(TcpConnection& connection, const Deadline& deadline) const;
  // Runs `body` on the connection, with the deadline of one answer. `what` is for messages.
  void exchange(const std::string& what, const std::function<void(TcpConnection&, const Deadline&)>& body);
  // Sends requests, of which only the last has an answer, and returns the number in it.
  std::int64_t ask(const std::string& what, std::initializer_list<proto::Request> requests);
  std::string bytes_of(const proto::Request& request) const;
  std::string description() const;

  const net::HostPort server_;
  proto::Dialect dialect_ = proto::Dialect::current;
  std::optional<TcpConnection> connection_;  // none after an error, until the next request
};

}  // namespace lockstep::store
