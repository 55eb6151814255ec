// What the sessions of one server share: its tables, its rules, and buffers that none of them needs for long.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "proto/protocol.h"
#include "proto/request.h"
#include "runtime/store/auth.h"
#include "runtime/store/barrier_table.h"
#include "runtime/store/key_table.h"
#include "runtime/store/secret.h"
#include "runtime/store/watch_table.h"

namespace lockstep::store {

using SessionId = std::uint64_t;

// What a session asks of the server that it is part of. Called from inside the session's own methods.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  // Calls the session's expire() after `delay`, in place of what was asked before; never, if it is stopped or ended.
  virtual void start_timer(SessionId session, std::chrono::nanoseconds delay) = 0;
  virtual void stop_timer(SessionId session) = 0;
  // Writes a line about the session's client to the log.
  virtual void complain(SessionId session, const std::string& what) = 0;
  // Serves REGISTER, HEARTBEAT, GOODBYE and REPORT.
  virtual Frame serve_member(SessionId session, const proto::Request& request) = 0;
};

// One thread.
struct ServerState {
  struct Rules {
    proto::Limits limits = {};
    KeyTable::Limits table = {};
    std::size_t max_watches = std::size_t{1} << 16;
    // Of one client: requests that wait, what it waits for, and replies that it hasn't read.
    std::size_t max_client_bytes = std::size_t{160} << 20;
    std::optional<Secret> secret = {};
    std::string run_id = {};
    // Before a wrong secret is answered.
    std::chrono::nanoseconds refusal_delay = std::chrono::seconds(1);
  };

  explicit ServerState(const Rules& its_rules);

  const Rules rules;
  KeyTable keys;
  BarrierTable barriers;
  WatchTable watches;
  // What all sessions hold together.
  std::size_t held_bytes = 0;
  // Readers of requests that have arrived whole; for others a session makes its own.
  proto::RequestReader greeting_reader;
  proto::RequestReader current_reader;
  proto::RequestReader legacy_reader;
  proto::RequestReader lockstep_reader;
  // Memory for a reply: the session that writes one takes it, and gives it back when the reply is sent.
  std::string spare_output;
};

}  // namespace lockstep::store
