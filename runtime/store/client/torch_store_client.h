// SPDX-License-Identifier: Apache-2.0
// TorchStoreClient is a client of PyTorch's store server, which torchrun's agent hosts. TorchStoreClient has only the
// four requests that a rendezvous through PyTorch's store needs.
//
// In the greeting, the client finds out whether the server speaks PyTorch's current dialect, or the legacy dialect of
// PyTorch 1.13 and 2.0 (proto/PROTOCOL.md). A TorchStoreClient sends one request at a time. A connection with an error
// is closed and never used again, so a late reply is never taken for the reply to another request.
//
// Threads: only one thread at a time may use a TorchStoreClient.
// Errors: a TorchStoreClient's functions throw StoreError, with the server's address, if the server can't be reached or
//   doesn't answer.
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
  // Connects to the server, and tries again until the deadline while the server does not answer. Throws Timeout at the
  // deadline; the message names the address and what was tried.
  TorchStoreClient(const net::HostPort& server, const Deadline& deadline);

  // Sets the value of `key`, and returns when the server has the value.
  void set(std::string_view key, std::string_view value);
  // Waits until `key` exists and returns its value. Throws Timeout, which names the key. If another client erases `key`
  // before get() has read the value, a server newer than PyTorch 2.0 returns an empty value. An older server closes the
  // connection instead of returning an empty value, and get() throws StoreError.
  std::string get(std::string_view key, const Deadline& deadline);
  void erase(std::string_view key);
  std::int64_t num_keys();

 private:
  void connect(const Deadline& deadline, Expect expect);
  void greet(TcpConnection& connection, const Deadline& deadline) const;
  // Calls `body` with the connection and the deadline for one answer. `what` names the call in messages.
  void exchange(const std::string& what, const std::function<void(TcpConnection&, const Deadline&)>& body);
  // Sends `requests`, and returns the number in the server's answer to the last request; the server answers only the
  // last request.
  std::int64_t ask(const std::string& what, std::initializer_list<proto::Request> requests);
  std::string bytes_of(const proto::Request& request) const;
  std::string description() const;

  const net::HostPort server_;
  proto::Dialect dialect_ = proto::Dialect::current;
  std::optional<TcpConnection> connection_;  // empty after an error, until the next request
};

}  // namespace lockstep::store
