// SPDX-License-Identifier: Apache-2.0
// The server's side of one connection as a state machine: bytes of requests in, bytes of replies out. No sockets.
//
// The first bytes say which dialect the client speaks. PyTorch's are served at once if the server is open, and refused
// if it has a secret; lockstep's own begins with a greeting (auth.h), before which nothing else is answered. An idle
// session holds no buffer. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/protocol.h"
#include "proto/request.h"
#include "runtime/store/auth.h"
#include "runtime/store/server/server_state.h"

namespace lockstep::store {

class ServerSession {
 public:
  // `state` and `host` must outlive it.
  ServerSession(ServerState& state, SessionHost& host, SessionId id);
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  // Takes bytes from the client and serves the requests that are complete. False if the connection must be closed, and
  // close_reason() says why; what output() holds may still be sent.
  [[nodiscard]] bool receive(std::string_view bytes);
  // The keys or ranks that it waits for have come (KeyTable::take_woken, BarrierTable::take_released): answers, and
  // continues with the requests held behind the wait. As receive().
  [[nodiscard]] bool wake();
  // The time that was asked of the host is over. As receive().
  [[nodiscard]] bool expire();

  // Appends what the client did not ask for. If it reads so little that it must be closed, close_reason() isn't empty
  // afterwards, and nothing more is appended. May be called while any session is at work.
  void push(const Frame& frame);
  void push_watch_event(const proto::Contents& event);
  // Drops what it was to be sent, and counts no more: it must be closed, for `reason`. Likewise.
  void shed(const std::string& reason);

  // Replies that are not sent yet, from the first of them.
  std::string_view output() const { return std::string_view(shared_ ? shared_->bytes() : output_).substr(sent_); }
  // The first `bytes` of output() were sent; what follows may be in another place now. This may make room for held
  // requests, which are then served. As receive().
  [[nodiscard]] bool sent(std::size_t bytes);

  // False while so much is held behind a wait, or behind replies that the client doesn't read, that no more should be
  // received.
  bool wants_input() const;
  // It has finished its greeting, or sent a whole request where there is none.
  bool is_greeted() const { return is_greeted_; }
  // True if nothing has come from it. With an open server it may be the second connection of a client of PyTorch 1.13.
  bool is_silent() const { return phase_ == Phase::opening && input_.empty(); }
  std::optional<proto::Dialect> dialect() const { return dialect_; }
  // "rank 3", or nothing; for the log.
  const std::string& role() const { return role_; }
  // The run that it has greeted for, or nothing.
  const std::string& run_id() const { return run_id_; }
  // Empty if the log has been told already.
  const std::string& close_reason() const { return close_reason_; }
  // Memory for what its client has sent and what it is to be sent.
  std::size_t held_bytes() const { return held_bytes_; }
  // held_bytes() and its part of a shared reply: the memory that closing it frees.
  std::size_t load() const;

 private:
  enum class Phase {
    opening,   // the dialect is not known
    greeting,  // HELLO is wanted
    proving,   // PROVE is wanted
    serving,
    refused,  // nothing more is taken; the answer comes at the timer's end
    closed,
  };
  // The request that is not answered yet because what it waits for hasn't come.
  struct Waiting {
    proto::Op op;
    std::vector<std::string> keys = {};  // of WAIT_GET
    bool has_timer = false;
    std::size_t bytes = 0;
  };

  bool serve(std::string_view& input);
  bool open(std::string_view input);
  bool must_hold(std::string_view input) const;
  proto::RequestReader& reader();
  proto::RequestReader fresh_reader() const;
  bool close(std::string reason);
  // Notes how much memory this session holds, `input_bytes` of it for requests. False, and closes, if it is over the
  // limit.
  bool account(std::size_t input_bytes);

  void answer(const ServerGreeting::Answer& answer);
  // server_operations.cc: what each operation does. May throw StoreError, which closes the connection.
  void execute(const proto::Request& request);
  void execute_own(const proto::Request& request);
  void wait(const proto::Request& request);
  void wait_get(const proto::Request& request);
  bool answer_wait_get(const std::vector<std::string_view>& keys);
  void barrier(const proto::Request& request);
  void cancel_wait();
  void start_waiting(Waiting waiting, std::optional<std::int64_t> timeout_ms);
  void stop_waiting();
  void answer_woken();
  bool answer_if_there(proto::Op op);
  void answer_late();
  void forget_waits();

  void reply(proto::Op op, const proto::Contents& contents);
  void reply_number(proto::Op op, std::int64_t number);
  void reply_frame(proto::Op op, std::uint8_t status, std::vector<std::string_view> list = {});
  void reply_values(proto::Op op, const std::vector<std::string_view>& keys);
  void reply_keys();
  std::vector<std::string_view> values_of(proto::Op op, const std::vector<std::string_view>& keys) const;
  std::string& writable_output();
  std::size_t unread() const { return (shared_ ? shared_->bytes().size() : 0) + output_.size() - sent_; }

  ServerState& state_;
  SessionHost& host_;
  const SessionId id_;
  Phase phase_ = Phase::opening;
  std::optional<proto::Dialect> dialect_;
  bool is_greeted_ = false;
  bool has_promise_ = false;  // was woken by an item of a queue, and hasn't asked for anything since
  bool is_urgent_ = false;    // replies that it has not read don't hold up its requests to the extension
  std::unique_ptr<proto::RequestReader> own_reader_;  // of a request that has come in part
  std::unique_ptr<ServerGreeting> greeting_;
  std::string role_;
  std::string run_id_;
  std::unique_ptr<Waiting> waiting_;
  std::string input_;  // begins with the first byte of a request; empty between requests
  std::string output_;
  std::shared_ptr<const SharedReply> shared_;  // goes before output_
  std::size_t sent_ = 0;                       // bytes of shared_, or else of output_, that are gone
  std::size_t held_bytes_ = 0;
  std::string close_reason_;
};

}  // namespace lockstep::store
