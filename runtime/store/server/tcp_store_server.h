// SPDX-License-Identifier: Apache-2.0
// The server of a TCP store: an event loop in a thread of its own, in the launcher or in rank 0's process.
//
// It speaks the protocol of proto/PROTOCOL.md: lockstep's, and without a secret also PyTorch's; a client's first bytes
// tell which. With a secret it answers nothing before the greeting in which both sides prove that they know it. Half a
// request, an unread reply or garbage from one client delays no other client. A client that breaks the protocol or a
// limit is closed, and its address and the reason are logged; many such lines become one with their number.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/owner_process.h"
#include "proto/protocol.h"
#include "runtime/net/address.h"
#include "runtime/store/secret.h"
#include "runtime/store/server/server_extension.h"

namespace lockstep::store {

inline constexpr std::size_t kMaxClients = 65536;

struct TcpStoreServerOptions {
  // The address to listen at. Port 0: a free one. An empty host: every address of this machine.
  net::HostPort listen = {"127.0.0.1", 0};
  // The secret that clients must prove to know. Without one, everybody who reaches the address may read and write.
  std::optional<Secret> secret = {};
  // The run of this server: it refuses clients of another run.
  std::string run_id = {};
  // The limits of one request or reply.
  proto::Limits limits = {};
  // The bytes of all keys, values and items of queues together. The last sixteenth is for writes of at most 4096 bytes.
  std::size_t max_stored_bytes = std::size_t{1} << 30;
  // The number of keys, and items of queues, together.
  std::size_t max_keys = std::size_t{1} << 20;
  // The number of keys that clients wait for, all together; also of keys that clients of PyTorch 1.13 watch, all
  // together.
  std::size_t max_waited_keys = std::size_t{4} << 20;
  std::size_t max_watched_keys = std::size_t{1} << 16;
  // The number of clients at one time. One more closes the oldest connection that hasn't finished its greeting; if
  // there is none, the new one.
  std::size_t max_clients = kMaxClients;
  // The number of clients that have not finished their greeting, but never more than a quarter of the descriptors that
  // this process may have (ulimit -n). One more, or a lack of descriptors, closes the oldest of them.
  std::size_t max_greeting_clients = 4096;
  // The time after which a client that hasn't finished its greeting is closed. A silent one may be the second
  // connection of a client of PyTorch 1.13 and stays (legacy_clients.h).
  std::chrono::nanoseconds greeting_timeout = std::chrono::seconds(10);
  // The time that a client with a wrong secret waits for its answer.
  std::chrono::nanoseconds refusal_delay = std::chrono::seconds(1);
  // The time in which 20 lines about bad clients are logged; further ones become one line with their number.
  std::chrono::nanoseconds complaint_window = std::chrono::seconds(10);
  // The memory for requests that wait and for unread replies: of one client, and of all. A client over its limit is
  // closed; over the limit of all, the client that holds most.
  std::size_t max_client_bytes = std::size_t{160} << 20;
  std::size_t max_held_bytes = std::size_t{1} << 30;
  // A function that is called with a run's id after the last client of that run has disconnected: the server then
  // erases every key that begins with its result, both as they are on the wire. On the server's thread. Null: keys
  // stay.
  std::function<std::string(const std::string& run_id)> keys_of_run = {};
  // The extension, which serves the operations that the store itself doesn't know, only of this server. Null: they are
  // refused.
  std::shared_ptr<ServerExtension> extension = {};
};

class TcpStoreServer {
 public:
  // Listens, then serves until destroyed. Throws what net::tcp_listen throws.
  explicit TcpStoreServer(const TcpStoreServerOptions& options = {});
  // Closes every connection; a waiting client gets a StoreError at once. The keys are lost. Does nothing in a forked
  // child.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // The address that it is bound to, with the actual port. The host is "::" or "0.0.0.0" if it listens everywhere.
  const net::HostPort& address() const;
  // The number of connections at this moment. Any thread.
  std::size_t client_count() const;
  // Erases, soon, every key that begins with `prefix`, both as they are on the wire: for keys that no client will ask
  // for again. Any thread.
  void erase_all(std::string prefix);
  // Closes the address: new clients find nobody here, connected ones are still served. Any thread.
  void stop_listening();
  // Waits until no client is connected, except those that the extension has given up and others of the same role; false
  // if some still are at the deadline. A client that has not finished its greeting after half a second is closed and
  // not waited for: it may be a stranger. The host of the store calls this before it ends, after its own clients are
  // closed, so that other clients' last requests are still answered. Any thread.
  bool wait_until_idle(const Deadline& deadline);
  // A descriptor for poll(2), readable once an error, which is logged, has ended the server.
  int end_fd() const;

 private:
  class Impl;
  OwnedHere<Impl> impl_;
};

}  // namespace lockstep::store
