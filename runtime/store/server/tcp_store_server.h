// SPDX-License-Identifier: Apache-2.0
// TcpStoreServer is a server that keeps a key-value store for clients over TCP. The server's event loop runs in a
// separate thread, in the launcher or in rank 0's process.
//
// The server speaks lockstep's dialect of the protocol in proto/PROTOCOL.md. A server without a secret also speaks
// PyTorch's dialects. A client's first bytes tell the dialect. A server with a secret answers no request before the
// greeting, in which both sides prove that they know the secret. A client that sends half a request or garbage, or does
// not read its replies, delays no other client. The server closes a client that breaks the protocol or a limit, and
// logs the client's address and the reason. If the server closes many clients, the log has only the first lines about
// these clients, and the number of lines that the server left out.
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
  // The address to listen at. Port 0 means a free port, and an empty host means every address of this machine.
  net::HostPort listen = {"127.0.0.1", 0};
  // The secret that each client must prove that it knows. Without a secret, everybody who reaches the address may read
  // and write.
  std::optional<Secret> secret = {};
  // The run of this server. The server refuses clients of another run.
  std::string run_id = {};
  // The limits of one request or reply.
  proto::Limits limits = {};
  // The largest number of bytes that all keys, values and queue items may have together. The last sixteenth of
  // max_stored_bytes is reserved for writes of at most 4096 bytes.
  std::size_t max_stored_bytes = std::size_t{1} << 30;
  // The largest number of keys and queue items together.
  std::size_t max_keys = std::size_t{1} << 20;
  // The largest number of keys that all clients together may wait for.
  std::size_t max_waited_keys = std::size_t{4} << 20;
  // The largest number of keys that all clients of PyTorch 1.13 together may watch.
  std::size_t max_watched_keys = std::size_t{1} << 16;
  // The largest number of connected clients. If a client connects while max_clients clients are connected, the server
  // closes the oldest connection that hasn't finished its greeting. If all connections have finished their greeting,
  // the server closes the new connection.
  std::size_t max_clients = kMaxClients;
  // The largest number of clients that have not finished their greeting. If a quarter of this process's limit of
  // descriptors (ulimit -n) is less than max_greeting_clients, this quarter is the limit. If a client connects while
  // the limit is reached, or if descriptors run out, the server closes the client whose greeting began first.
  std::size_t max_greeting_clients = 4096;
  // The time after which the server closes a client that hasn't finished its greeting. A silent connection stays open
  // if it may be the second connection of a client of PyTorch 1.13 (legacy_clients.h).
  std::chrono::nanoseconds greeting_timeout = std::chrono::seconds(10);
  // The time after which the server answers a client that has sent a proof with a wrong secret.
  std::chrono::nanoseconds refusal_delay = std::chrono::seconds(1);
  // The length of the time window in which the server logs at most 20 lines about bad clients. If the server leaves out
  // lines about bad clients in a window, the server logs the number of lines that it left out.
  std::chrono::nanoseconds complaint_window = std::chrono::seconds(10);
  // The largest number of bytes for one client's waiting requests and unread replies. The server closes a client that
  // exceeds max_client_bytes.
  std::size_t max_client_bytes = std::size_t{160} << 20;
  // The largest number of bytes for all clients' waiting requests and unread replies. If all clients together exceed
  // max_held_bytes, the server closes the client that holds most memory.
  std::size_t max_held_bytes = std::size_t{1} << 30;
  // A function that the server's thread calls with a run's id after the last client of that run has disconnected. The
  // function keys_of_run returns a prefix, and the server erases every key that begins with the prefix. The prefix
  // includes the "/" that clients put before each key on the wire. If the function is null, keys stay.
  std::function<std::string(const std::string& run_id)> keys_of_run = {};
  // The extension that serves the operations that the store doesn't know. An extension belongs to only one server. If
  // `extension` is null, the server refuses operations that the store doesn't know.
  std::shared_ptr<ServerExtension> extension = {};
};

class TcpStoreServer {
 public:
  // Listens, then serves until the destruction. Throws the exceptions of net::tcp_listen().
  explicit TcpStoreServer(const TcpStoreServerOptions& options = {});
  // Closes every connection, so that a waiting client gets a StoreError at once. The keys are lost. Does nothing in a
  // forked child.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // Returns the address at which the server listens, with the actual port. The host is "::" or "0.0.0.0" if the server
  // listens at every address.
  const net::HostPort& address() const;
  // Returns the number of connections at this moment. Any thread may call client_count().
  std::size_t client_count() const;
  // Schedules the erasure of every key that begins with `prefix`, and returns at once. `prefix` includes the "/" that
  // clients put before each key on the wire. Call erase_all() only for keys that no client will ask for again. Any
  // thread may call erase_all().
  void erase_all(std::string prefix);
  // Stops listening: new clients can't connect, and the server still serves the connected clients. Any thread may call
  // stop_listening() at any time.
  void stop_listening();
  // Waits until no client is connected. Clients that the extension has given up, and clients with the role of a
  // given-up client, do not count as connected. Returns false if some client is still connected at the deadline. A
  // client that has not finished its greeting after half a second is closed, because the client may be a stranger. The
  // process that hosts the store closes its own clients and calls wait_until_idle() before it ends, so that the server
  // still answers other clients' last requests. Any thread may call wait_until_idle().
  bool wait_until_idle(const Deadline& deadline);
  // Returns a descriptor for poll(2). The descriptor becomes readable when an error, which the server logs, has ended
  // the server.
  int end_fd() const;

 private:
  class Impl;
  OwnedHere<Impl> impl_;
};

}  // namespace lockstep::store
