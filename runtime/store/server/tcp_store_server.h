// SPDX-License-Identifier: Apache-2.0
// The server of a TCP store: an event loop in a thread of its own. Lives in the launcher, or in rank 0's process.
//
// Speaks the protocol of proto/PROTOCOL.md: lockstep's, and without a secret also PyTorch's, told apart by a client's
// first bytes. With a secret nothing is answered but the greeting in which both sides prove that they know it. Half a
// request, a reply that is not read, or garbage from one client delay no other; a client that breaks the protocol or a
// limit is closed, and a line in the log names its address and the reason. Many such lines become one with their
// number.
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
  // Address to listen at. Port 0: a free one. An empty host: every address of this machine.
  net::HostPort listen = {"127.0.0.1", 0};
  // Secret that clients must prove to know; without one, everybody who reaches the address may read and write.
  std::optional<Secret> secret = {};
  // The run that this server is of: clients of another are refused.
  std::string run_id = {};
  // Limits of one request or reply.
  proto::Limits limits = {};
  // Bytes of all keys, values and items of queues together. The last sixteenth is for writes of at most 4096 bytes.
  std::size_t max_stored_bytes = std::size_t{1} << 30;
  // Keys, and items of queues, together.
  std::size_t max_keys = std::size_t{1} << 20;
  // Keys that clients wait for, all together; keys that clients of PyTorch 1.13 watch, all together.
  std::size_t max_waited_keys = std::size_t{4} << 20;
  std::size_t max_watched_keys = std::size_t{1} << 16;
  // Clients at one time. When one more comes, the oldest connection that hasn't finished its greeting is closed; if
  // there is none, the new one.
  std::size_t max_clients = kMaxClients;
  // Clients that have not finished their greeting, but never more than a quarter of the descriptors that this process
  // may have (ulimit -n). When one more comes, or the descriptors are used up, the oldest of them is closed.
  std::size_t max_greeting_clients = 4096;
  // A client that hasn't finished its greeting by then is closed. A silent one may be the
  // second connection of a client of PyTorch 1.13 and stays (legacy_clients.h).
  std::chrono::nanoseconds greeting_timeout = std::chrono::seconds(10);
  // How long a client with a wrong secret waits for its answer.
  std::chrono::nanoseconds refusal_delay = std::chrono::seconds(1);
  // Time in which 20 lines about bad clients go to the log; the others become one line with their number.
  std::chrono::nanoseconds complaint_window = std::chrono::seconds(10);
  // Memory for requests that wait and for replies that are not read: of one client, and of all. A client over its limit
  // is closed; over the limit of all, the one that holds most.
  std::size_t max_client_bytes = std::size_t{160} << 20;
  std::size_t max_held_bytes = std::size_t{1} << 30;
  // Called with a run's id when the last client of that run has gone: takes out every key that begins with what it
  // returns, both as they go over the wire. On the server's thread. Null: keys stay.
  std::function<std::string(const std::string& run_id)> keys_of_run = {};
  // Serves the operations that the store itself doesn't know, of this server alone; without one they are refused.
  std::shared_ptr<ServerExtension> extension = {};
};

class TcpStoreServer {
 public:
  // Listens, then serves until destroyed. Throws what net::tcp_listen throws.
  explicit TcpStoreServer(const TcpStoreServerOptions& options = {});
  // Closes every connection; whoever waits gets a StoreError at once. The keys are gone. In a forked child: nothing.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // The address it is bound to, with the port it got. The host is "::" or "0.0.0.0" if it listens everywhere.
  const net::HostPort& address() const;
  // Connections at this moment. Any thread.
  std::size_t client_count() const;
  // Takes out every key that begins with `prefix`, both as they go over the wire, soon: for keys that nobody will ask
  // for again. Any thread.
  void erase_all(std::string prefix);
  // Closes the address: who comes from now on finds nobody here, who is connected is served on. Any thread.
  void stop_listening();
  // Waits until no client is connected but those that the extension has given up, with the others of the same role;
  // false if some still are at the deadline. A client that has not finished its greeting after half a second of it is
  // closed and not waited for: it may be a stranger. The host of the store calls this before it ends, when its own
  // clients are closed, so that the others' last requests are still answered. Any thread.
  bool wait_until_idle(const Deadline& deadline);
  // Can be read once an error has ended the server, which is in the log: it serves nobody any more. For poll(2).
  int end_fd() const;

 private:
  class Impl;
  OwnedHere<Impl> impl_;
};

}  // namespace lockstep::store
