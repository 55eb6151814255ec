// SPDX-License-Identifier: Apache-2.0
// ServerState has the data that all sessions of one server share: tables, options, and reusable buffers.
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

// SessionHost has the functions of the server that a session calls.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  // Calls the session's expire() after `delay`, and stops an earlier timer of the session. If the timer is stopped or
  // the session ends, expire() is not called.
  virtual void start_timer(SessionId session, std::chrono::nanoseconds delay) = 0;
  virtual void stop_timer(SessionId session) = 0;
  // Writes a line about the session's client to the log.
  virtual void complain(SessionId session, const std::string& what) = 0;
  // Serves the operations of the server's extension.
  virtual ServerExtension::Answer serve_extension(SessionId session, const proto::Request& request) = 0;
};

// A SharedReply is a large reply that several sessions send, so that memory holds a large value only once, even if
// every rank wants the value.
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
  // The number of bytes that all sessions hold together, including the bytes of shared replies.
  std::size_t held_bytes = 0;
  // The readers of requests that arrive whole. If a request arrives in parts, the session makes a separate reader for
  // the request.
  proto::RequestReader greeting_reader;
  proto::RequestReader current_reader;
  proto::RequestReader legacy_reader;
  proto::RequestReader lockstep_reader;
  // A LargeReply is the last large reply, which the server sends again to clients that send the same request before a
  // key changes.
  struct LargeReply {
    proto::Op op = proto::Op::get;
    std::vector<std::string> keys = {};
    std::uint64_t version = 0;  // the version of the keys when the reply was made
    std::weak_ptr<const SharedReply> reply = {};
  };
  LargeReply last_large_reply;
  // The memory for one reply. The session that writes a reply takes spare_output, and returns the memory after the
  // whole reply is sent.
  std::string spare_output;
};

}  // namespace lockstep::store
