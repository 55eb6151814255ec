// The server of a TCP store: an event loop in a thread of its own. Lives in the launcher, or in rank 0's process.
//
// Speaks the protocol of proto/PROTOCOL.md. Half a request, a reply that is not read, or garbage from one client delay
// no other; a client that breaks the protocol or a limit is closed, and a line in the log names its address and the
// reason. Not authenticated: whoever reaches the address may read and write.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "proto/protocol.h"
#include "runtime/base/deadline.h"
#include "runtime/net/address.h"
#include "runtime/store/secret.h"

namespace lockstep::store {

struct TcpStoreServerOptions {
  // Where to listen. Port 0: a free one. An empty host: every address of this machine.
  net::HostPort listen = {"127.0.0.1", 0};
  // What clients must know; without one, everybody who reaches the address may read and write.
  std::optional<Secret> secret = {};
  // The run that this server is of: clients of another are refused.
  std::string run_id = {};
  // Of one request or reply.
  proto::Limits limits = {};
  // Of all keys and values together.
  std::size_t max_stored_bytes = std::size_t{1} << 30;
  // Clients at one time; more are closed as they come.
  std::size_t max_clients = 65536;
  // A client that hasn't sent its greeting by then is closed.
  std::chrono::nanoseconds greeting_timeout = std::chrono::seconds(30);
};

class TcpStoreServer {
 public:
  // Listens, then serves until destroyed. Throws what net::tcp_listen throws.
  explicit TcpStoreServer(const TcpStoreServerOptions& options = {});
  // Closes every connection; whoever waits gets a StoreError at once. The keys are gone.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // The address it is bound to, with the port it got. The host is "::" or "0.0.0.0" if it listens everywhere.
  const net::HostPort& address() const;
  // Connections at this moment. Any thread.
  std::size_t client_count() const;
  // Closes the address: who comes from now on finds nobody here, who is connected is served on. Any thread.
  void stop_listening();
  // Waits until no client is connected; false if some still are at the deadline. The host of the store calls this
  // before it ends, when its own clients are closed, so that the others' last requests are still answered. Any thread.
  bool wait_until_idle(const Deadline& deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::store
