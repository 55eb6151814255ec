// SPDX-License-Identifier: Apache-2.0
// TcpStoreServer is the server of a TCP store. The server's event loop runs in a separate thread, in the launcher or in
// rank 0's process.
//
// The server speaks the protocol of proto/PROTOCOL.md: lockstep's dialect, and without a secret also PyTorch's
// dialects. A client's first bytes tell the dialect. With a secret the server answers no request before the greeting,
// in which both sides prove that they know the secret. Half a request, an unread reply or garbage from one client
// delays no other client. The server closes a client that breaks the protocol or a limit, and logs the client's address
// and the reason. Many such log lines become one line with their number.
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
  // The secret that clients must prove to know. Without a secret, everybody who reaches the address may read and write.
  std::optional<Secret> secret = {};
  // The run of this server. The server refuses clients of another run.
  std::string run_id = {};
  // The limits of one request or reply.
  proto::Limits limits = {};
  // The most bytes of all keys, values and items of queues together. The last sixteenth is reserved for writes of at
  // most 4096 bytes.
  std::size_t max_stored_bytes = std::size_t{1} << 30;
  // The most keys and items of queues together.
  std::size_t max_keys = std::size_t{1} << 20;
  // The most keys that all clients together wait for.
  std::size_t max_waited_keys = std::size_t{4} << 20;
  // The most keys that all clients of PyTorch 1.13 together watch.
  std::size_t max_watched_keys = std::size_t{1} << 16;
  // The most clients at one time. A further client closes the oldest connection that hasn't finished its greeting. If
  // all connections have finished their greeting, the further client is closed.
  std::size_t max_clients = kMaxClients;
  // The most clients that have not finished their greeting, but never more than a quarter of the descriptors that this
  // process may have (ulimit -n). A further client, or a lack of descriptors, closes the oldest client in its greeting.
  std::size_t max_greeting_clients = 4096;
  // The time after which a client that hasn't finished its greeting is closed. A silent connection stays if it may be
  // the second connection of a client of PyTorch 1.13 (legacy_clients.h).
  std::chrono::nanoseconds greeting_timeout = std::chrono::seconds(10);
  // The time that a client with a wrong secret waits for its answer.
  std::chrono::nanoseconds refusal_delay = std::chrono::seconds(1);
  // The time in which 20 lines about bad clients are logged. Further lines become one line with their number.
  std::chrono::nanoseconds complaint_window = std::chrono::seconds(10);
  // The most memory for one client's waiting requests and unread replies. A client over this limit is closed.
  std::size_t max_client_bytes = std::size_t{160} << 20;
  // The most memory for all clients' waiting requests and unread replies. Over this limit, the client that holds most
  // memory is closed.
  std::size_t max_held_bytes = std::size_t{1} << 30;
  // A function that the server's thread calls with a run's id after the last client of that run has disconnected. The
  // server then erases every key that begins with the function's result. Keys and result are as on the wire. If the
  // function is null, keys stay.
  std::function<std::string(const std::string& run_id)> keys_of_run = {};
  // The extension, which serves the operations that the store doesn't know, and which serves only this server. If the
  // extension is null, the server refuses such operations.
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

  // Returns the address that the server is bound to, with the actual port. The host is "::" or "0.0.0.0" if the server
  // listens at every address.
  const net::HostPort& address() const;
  // Returns the number of connections at this moment. Any thread may call client_count().
  std::size_t client_count() const;
  // Erases, soon, every key that begins with `prefix`. Keys and `prefix` are as on the wire. erase_all() is for keys
  // that no client will ask for again. Any thread may call erase_all().
  void erase_all(std::string prefix);
  // Closes the address: new clients find no server, and connected clients are still served. Any thread may call
  // stop_listening() at any time.
  void stop_listening();
  // Waits until no client is connected, except clients that the extension has given up and clients of the same role.
  // Returns false if some client is still connected at the deadline. A client that has not finished its greeting after
  // half a second is closed and not waited for, because the client may be a stranger. The process that hosts the store
  // calls wait_until_idle() before it ends, after its own clients are closed, so that other clients' last requests are
  // still answered. Any thread may call wait_until_idle().
  bool wait_until_idle(const Deadline& deadline);
  // Returns a descriptor for poll(2). The descriptor is readable once an error, which is logged, has ended the server.
  int end_fd() const;

 private:
  class Impl;
  OwnedHere<Impl> impl_;
};

}  // namespace lockstep::store
