// SPDX-License-Identifier: Apache-2.0
// TcpStore is the client of a TCP store (tcp_store_server.h).
//
// Each call uses a separate connection, from a pool that grows with the number of simultaneous calls. So a thread that
// waits delays no other thread. rest() shrinks the pool. A write returns when the server has the value. A connection
// with an error is closed and never used again, so a late reply is never taken for the reply to another request. A get
// is one round trip, and the server keeps the deadline of the get.
//
// After the server is gone every call throws StoreError, also a call that is waiting. The call throws at once if the
// server's process has ended, and in net::kVanishedAfter if the server's host has vanished.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/owner_process.h"
#include "lockstep/store/store.h"
#include "proto/request.h"
#include "runtime/base/event_fd.h"
#include "runtime/base/mutex.h"
#include "runtime/net/address.h"
#include "runtime/store/auth.h"
#include "runtime/store/client/tcp_connection.h"
#include "runtime/store/endpoint.h"
#include "runtime/store/store_internals.h"

namespace lockstep::store {

struct TcpStoreOptions {
  // The longest time for the round trip of a request that doesn't wait for a key. After this time the store counts as
  // lost, and the call throws StoreLost.
  std::chrono::nanoseconds request_timeout = std::chrono::seconds(30);
  // The time that an answer may take after the deadline of its wait, and that any answer may take after stop_waiting().
  // Only the server can say which rank has not arrived, or which event came first, and the server's process may be
  // suspended for a while without being lost. If the server is silent for longer, the call throws StoreLost.
  std::chrono::nanoseconds cancel_timeout = std::chrono::seconds(5);
  // The time that an answer may take after give_up(), like cancel_timeout.
  std::chrono::nanoseconds give_up_timeout = std::chrono::seconds(1);
};

class TcpStore : public Store, public StoreInternals {
 public:
  // Connects, and retries until the deadline while nobody listens. Throws Timeout, which names the address and what was
  // tried. Throws StoreError at once if the server refuses this client or can't prove that it knows the secret.
  TcpStore(const Endpoint& endpoint, const Deadline& deadline, const TcpStoreOptions& options = {});
  // Connects, as the constructor above, to a lockstep server without a secret.
  TcpStore(const net::HostPort& server, const Deadline& deadline, const TcpStoreOptions& options = {});

  // The calls from set() to list_keys() throw InvalidArgument, before they send a request, for keys, values and counts
  // over the limits of proto/protocol.h.
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, const Deadline& deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  bool check(std::span<const std::string> keys) override;
  bool erase(std::string_view key) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) override;
  // Returns the number of keys, including keys that other kinds of clients have set without a "/" before the key.
  std::int64_t num_keys() override;
  std::vector<std::string> list_keys() override;
  // Cancels pending waits at the server. From now on every request waits at most TcpStoreOptions::cancel_timeout for
  // its answer, then throws StoreLost.
  void stop_waiting() override;
  // Works like stop_waiting(), with TcpStoreOptions::give_up_timeout.
  void give_up() override;
  void rest() override EXCLUDES(mutex_);
  std::string description() const override;

 private:
  const OwnerProcess owner_;  // refuses forked children, whose requests would mix with this process's on one connection
  std::string_view checked_value(std::string_view key, std::string_view value) const;
  Stop stop() const {
    return {.fd = stop_.fd(),
            .grace = options_.cancel_timeout,
            .give_up_fd = given_up_.fd(),
            .last_grace = options_.give_up_timeout};
  }
  Deadline unless_stopped(const Deadline& deadline) const;
  TcpConnection take(const Deadline& deadline) EXCLUDES(mutex_);
  void give_back(TcpConnection connection) EXCLUDES(mutex_);
  // Runs `body` on a connection. `what` names the call in messages. A Timeout of `body` means a silent server.
  void with_connection(const std::string& what, const Deadline& deadline,
                       const std::function<void(TcpConnection&)>& body);
  // A Reply is the reply to one request.
  struct Reply {
    std::int64_t number = 0;
    std::vector<std::string> keys = {};
    Frame frame = {};
  };
  Reply exchange(const std::string& what, const proto::Request& request);
  // Sends a request that waits until the deadline or stop_waiting(), and returns the answer. If stop_waiting() ends the
  // wait, the answer's status is kMissing, as if the deadline had passed.
  Frame ask_and_wait(const std::string& what, const proto::Request& request, const Deadline& deadline);
  // Throws StoreError if the frame's status is not the status of an answer.
  void check_status(const std::string& what, const Frame& frame) const;
  [[noreturn]] void throw_refused(const std::string& what, const Frame& frame) const;
  std::string bytes_of(const proto::Request& request) const;
  Deadline answer_deadline(const Deadline& deadline) const;
  StoreLost lost(const std::string& what, std::string_view how, std::string_view hint) const;

  const net::HostPort server_;  // the address as the caller named it, for messages
  const TcpStoreOptions options_;
  Endpoint endpoint_;       // has the numeric address that answered, for further connections
  const EventFd stop_;      // readable once no call may wait
  const EventFd given_up_;  // readable once the store is known not to answer

  Mutex mutex_;
  std::vector<TcpConnection> idle_ GUARDED_BY(mutex_);
  bool has_been_used_ GUARDED_BY(mutex_) = false;  // true if a call used a connection since the last rest()
};

}  // namespace lockstep::store
