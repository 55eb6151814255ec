// SPDX-License-Identifier: Apache-2.0
// TcpStore is a client of a TCP store server (tcp_store_server.h).
//
// Each call takes a connection from a pool, which grows with the number of simultaneous calls, so a thread that
// waits delays no other thread. A call of rest() closes idle connections. A call that writes returns after the
// server has stored the value. A connection with an error is closed and never used again, so a late reply is never
// taken for the reply to another request. A call of get() takes one round trip, because the server waits for the key
// until the deadline.
//
// If the server is gone, every call throws StoreError, including the calls that are waiting. A waiting call throws at
// once if the server's process has ended, and after net::kVanishedAfter if the server's host has vanished.
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
  // The longest time for the round trip of a request that doesn't wait for a key. If the reply takes longer than
  // request_timeout, the call throws StoreLost.
  std::chrono::nanoseconds request_timeout = std::chrono::seconds(30);
  // The longest time that a call waits for the server's answer after the call's deadline, or after stop_waiting(). A
  // call still waits for the answer after the deadline, because only the server can say which rank has not arrived, or
  // which event came first. The server's process may be suspended for some seconds and then answer after all. If the
  // server is silent for longer than cancel_timeout, the call throws StoreLost.
  std::chrono::nanoseconds cancel_timeout = std::chrono::seconds(5);
  // The longest time that a call waits for the server's answer after give_up().
  std::chrono::nanoseconds give_up_timeout = std::chrono::seconds(1);
};

class TcpStore : public Store, public StoreInternals {
 public:
  // Connects to the server, and tries again until the deadline while nobody listens at the address. Throws Timeout at
  // the deadline; the message names the address and what was tried. Throws StoreError at once if the server refuses
  // this client or can't prove that it knows the secret.
  TcpStore(const Endpoint& endpoint, const Deadline& deadline, const TcpStoreOptions& options = {});
  // Works like the constructor above, for a lockstep server without a secret.
  TcpStore(const net::HostPort& server, const Deadline& deadline, const TcpStoreOptions& options = {});

  // The functions from set() to list_keys() throw InvalidArgument, and send nothing, if a key, a value or the number of
  // keys exceeds the limits of proto/protocol.h.
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, const Deadline& deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  bool check(std::span<const std::string> keys) override;
  bool erase(std::string_view key) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) override;
  // Returns the number of all keys on the server, including the keys that other kinds of clients have set without the
  // prefix "/".
  std::int64_t num_keys() override;
  std::vector<std::string> list_keys() override;
  // Cancels pending waits at the server. After stop_waiting(), every request waits at most
  // TcpStoreOptions::cancel_timeout for its answer, and throws StoreLost if the answer takes longer.
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
  // Runs `body` on a connection. `what` names the call in messages. If `body` throws Timeout, the server is silent, and
  // with_connection() throws StoreLost.
  void with_connection(const std::string& what, const Deadline& deadline,
                       const std::function<void(TcpConnection&)>& body);
  // A Reply has the contents of the server's reply to one request.
  struct Reply {
    std::int64_t number = 0;
    std::vector<std::string> keys = {};
    Frame frame = {};
  };
  Reply exchange(const std::string& what, const proto::Request& request);
  // Sends a request that waits at the server until the deadline or stop_waiting(), and returns the server's answer. If
  // stop_waiting() ends the wait, the answer's status is kMissing, as if the deadline had passed.
  Frame ask_and_wait(const std::string& what, const proto::Request& request, const Deadline& deadline);
  // Throws StoreError if this client does not know the frame's status.
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
