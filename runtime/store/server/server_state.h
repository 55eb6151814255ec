// SPDX-License-Identifier: Apache-2.0
// ServerState is the state that the sessions of one server share: tables, rules, and buffers for short use.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/protocol.h"
#include "proto/request.h"
#include "runtime/store/auth.h"
#include "runtime/store/secret.h"
#include "runtime/store/server/barrier_table.h"
#include "runtime/store/server/key_table.h"
#include "runtime/store/server/legacy_clients.h"
#include "runtime/store/server/server_extension.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::store {

// SessionHost is the server as a session sees it. The methods of the session call the host.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  // Calls the session's expire() after `delay`, in place of an earlier timer's call. expire() is not called if the
  // timer is stopped or the session has ended.
  virtual void start_timer(SessionId session, std::chrono::nanoseconds delay) = 0;
  virtual void stop_timer(SessionId session) = 0;
  // Writes a line about the session's client to the log.
  virtual void complain(SessionId session, const std::string& what) = 0;
  // Serves the operations of the server's extension.
  virtual ServerExtension::Answer serve_extension(SessionId session, const proto::Request& request) = 0;
};

// A SharedReply is a large reply that several sessions send. So a value that every rank wants is in memory only once.
class SharedReply {
 public:
  // Adds the size of `bytes` to `held` for the lifetime of the reply.
  SharedReply(std::size_t& held, std::string bytes) : held_(held), bytes_(std::move(bytes)) { held_ += bytes_.size(); }
  ~SharedReply() { held_ -= bytes_.size(); }
  SharedReply(const SharedReply&) = delete;
  SharedReply& operator=(const SharedReply&) = delete;

  const std::string& bytes() const { return bytes_; }

 private:
  std::size_t& held_;
  const std::string bytes_;
};

// Only one thread uses a ServerState.
struct ServerState {
  explicit ServerState(const TcpStoreServerOptions& its_options);

  const TcpStoreServerOptions options;
  KeyTable keys;
  BarrierTable barriers;
  LegacyClients legacy;
  // The number of bytes that all sessions hold together.
  std::size_t held_bytes = 0;
  // The readers of requests that arrive whole. For a request that arrives in parts a session makes a separate reader.
  proto::RequestReader greeting_reader;
  proto::RequestReader current_reader;
  proto::RequestReader legacy_reader;
  proto::RequestReader lockstep_reader;
  // A LargeReply is the large reply that was made last, for clients that send the same request before a key changes.
  struct LargeReply {
    proto::Op op = proto::Op::get;
    std::vector<std::string> keys = {};
    std::uint64_t version = 0;  // the version of the keys when the reply was made
    std::weak_ptr<const SharedReply> reply = {};
  };
  LargeReply last_large_reply;
  // The memory for one reply. The session that writes a reply takes the memory, and returns the memory after the reply
  // is sent completely.
  std::string spare_output;
};

}  // namespace lockstep::store
