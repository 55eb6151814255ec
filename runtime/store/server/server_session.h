// SPDX-License-Identifier: Apache-2.0
// The server's side of one connection as a state machine: bytes of requests in, bytes of replies out. No sockets.
//
// The first bytes decide which dialect the client speaks. A server without a secret serves PyTorch's at once, and a
// server with one refuses it; lockstep's own begins with a greeting (auth.h), before which nothing else is answered. An
// idle session holds no buffer. One thread.
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
  // `state` and `host` outlive it.
  ServerSession(ServerState& state, SessionHost& host, SessionId id);
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  // Takes bytes from the client and serves the requests that are complete. False if the connection must be closed, for
  // close_reason(); the bytes of output() may still be sent.
  [[nodiscard]] bool receive(std::string_view bytes);
  // Answers after the awaited keys or ranks have arrived (KeyTable::take_woken, BarrierTable::take_released), and
  // continues with the requests held after the wait. Returns as receive().
  [[nodiscard]] bool wake();
  // Answers after the time that was asked of the host is over. Returns as receive().
  [[nodiscard]] bool expire();

  // Appends a frame that the client did not ask for. If the client reads so little that it must be closed,
  // close_reason() is not empty afterwards, and nothing more is appended. May be called while any session is at work.
  void push(const Frame& frame);
  void push_watch_event(const proto::Contents& event);
  // Drops all output, and counts no memory any more: the session must be closed, for `reason`. May be called while any
  // session is at work.
  void shed(const std::string& reason);

  // The bytes of replies that are not sent yet.
  std::string_view output() const { return std::string_view(shared_ ? shared_->bytes() : output_).substr(sent_); }
  // Notes that the first `bytes` of output() were sent; the rest may be in another place now. This may make room for
  // held requests, which are then served. Returns as receive().
  [[nodiscard]] bool sent(std::size_t bytes);

  // False while so much is held after a wait, or because of replies that the client doesn't read, that no more should
  // be received.
  bool wants_input() const;
  // Whether the client has finished its greeting, or, in a dialect without one, sent a whole request.
  bool is_greeted() const { return is_greeted_; }
  // Whether nothing has arrived. On a server without a secret it may be the second connection of a PyTorch 1.13 client.
  bool is_silent() const { return phase_ == Phase::opening && input_.empty(); }
  std::optional<proto::Dialect> dialect() const { return dialect_; }
  // The client's role, "rank 3", for the log; empty if unknown.
  const std::string& role() const { return role_; }
  // The run of the client's greeting; empty if unknown.
  const std::string& run_id() const { return run_id_; }
  // The reason why the connection must be closed; empty if the log has it already.
  const std::string& close_reason() const { return close_reason_; }
  // The memory for the client's requests and the replies to it, in bytes.
  std::size_t held_bytes() const { return held_bytes_; }
  // held_bytes() and the session's part of a shared reply: the memory that closing it frees.
  std::size_t load() const;

 private:
  enum class Phase {
    opening,   // the dialect is not known
    greeting,  // HELLO is awaited
    proving,   // PROVE is awaited
    serving,
    refused,  // nothing more is taken; the answer is sent when the timer ends
    closed,
  };
  // The request that is not answered yet because its keys or ranks have not arrived.
  struct Waiting {
    proto::Op op;
    std::vector<std::string> keys = {};  // WAIT_GET's keys
    bool has_timer = false;
    std::size_t bytes = 0;
  };

  bool serve(std::string_view& input);
  bool open(std::string_view input);
  bool must_hold(std::string_view input) const;
  proto::RequestReader& reader();
  proto::RequestReader fresh_reader() const;
  bool close(std::string reason);
  // Notes how much memory this session holds, `input_bytes` of it for requests. False if it is over the limit; the
  // session then closes.
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
  bool has_promise_ = false;  // was woken by an item of a queue, and has not sent a request since
  bool is_urgent_ = false;    // unread replies don't hold up its requests to the extension
  std::unique_ptr<proto::RequestReader> own_reader_;  // for a request that has arrived in part
  std::unique_ptr<ServerGreeting> greeting_;
  std::string role_;
  std::string run_id_;
  std::unique_ptr<Waiting> waiting_;
  std::string input_;  // begins with the first byte of a request; empty between requests
  std::string output_;
  std::shared_ptr<const SharedReply> shared_;  // is sent before output_
  std::size_t sent_ = 0;                       // bytes of shared_, or else of output_, that were sent
  std::size_t held_bytes_ = 0;
  std::string close_reason_;
};

}  // namespace lockstep::store
