// SPDX-License-Identifier: Apache-2.0
// ServerSession is the server's side of one connection, as a state machine without sockets, which takes bytes of
// requests and returns bytes of replies.
//
// The client's first bytes decide which dialect the session speaks. A server without a secret serves PyTorch's dialects
// at once, and a server with a secret refuses PyTorch's dialects. A client of lockstep's dialect must greet first
// (auth.h): before the greeting, the session answers no other request. An idle session holds no buffer. One thread uses
// the sessions.
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
  // `state` and `host` must outlive the session.
  ServerSession(ServerState& state, SessionHost& host, SessionId id);
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  // Takes bytes from the client and serves the requests that are complete. Returns false if the connection must be
  // closed; close_reason() then has the reason. The server may still send output() before it closes the connection.
  [[nodiscard]] bool receive(std::string_view bytes);
  // Answers the client's waiting request, and then serves the requests that were held during the wait. The server calls
  // wake() for the sessions that KeyTable::take_woken() and BarrierTable::take_released() return. Returns false, like
  // receive(), if the connection must be closed.
  [[nodiscard]] bool wake();
  // Answers the client when the timer of SessionHost::start_timer() has expired. Returns false, like receive(), if the
  // connection must be closed.
  [[nodiscard]] bool expire();

  // Appends to the output a frame that the client did not ask for. If the unread output exceeds the session's memory
  // limit, push() sets close_reason(), and later calls append no frame. The server may call push() while any session is
  // serving a request.
  void push(const Frame& frame);
  void push_watch_event(const proto::Contents& event);
  // Drops all output, and stops counting the session's memory in ServerState::held_bytes. After shed(), the server must
  // close the session. If the session is still open, shed() sets close_reason() to `reason`. The server may call shed()
  // while any session is serving a request.
  void shed(const std::string& reason);

  // Returns the bytes of replies that are not sent yet.
  std::string_view output() const { return std::string_view(shared_ ? shared_->bytes() : output_).substr(sent_); }
  // Tells the session that the first `bytes` bytes of output() were sent. After sent(), output() may refer to another
  // buffer. If enough output was sent, sent() serves the requests that were held because of unread replies. Returns
  // false, like receive(), if the connection must be closed.
  [[nodiscard]] bool sent(std::size_t bytes);

  // Returns false if the server should receive no more input, because the session holds too many requests. The session
  // holds requests while the client waits for a key, and while the client doesn't read replies.
  bool wants_input() const;
  // Returns whether the client has finished its greeting, or has sent a whole request in a dialect without a greeting.
  bool is_greeted() const { return is_greeted_; }
  // Returns whether no byte has arrived. On a server without a secret, a silent connection may be the second connection
  // of a PyTorch 1.13 client.
  bool is_silent() const { return phase_ == Phase::opening && input_.empty(); }
  std::optional<proto::Dialect> dialect() const { return dialect_; }
  // Returns the client's role for the log, such as "rank 3", or an empty text if the role is unknown.
  const std::string& role() const { return role_; }
  // Returns the id of the run that the client named in its greeting, or an empty text if the run is unknown.
  const std::string& run_id() const { return run_id_; }
  // Returns the reason why the connection must be closed, or an empty text if the log has the reason already.
  const std::string& close_reason() const { return close_reason_; }
  // Returns the size in bytes of the memory for the client's requests and replies.
  std::size_t held_bytes() const { return held_bytes_; }
  // Returns the number of bytes that closing the session frees, which are held_bytes() and the session's part of a
  // shared reply.
  std::size_t load() const;

 private:
  enum class Phase {
    opening,   // the dialect is not known
    greeting,  // HELLO is awaited
    proving,   // PROVE is awaited
    serving,
    refused,  // no more input is taken; the answer is sent when the timer ends
    closed,
  };
  // Waiting describes a request that has no answer yet because the awaited keys or ranks have not arrived.
  struct Waiting {
    proto::Op op;
    std::vector<std::string> keys = {};  // the keys of WAIT_GET
    bool has_timer = false;
    std::size_t bytes = 0;
  };

  bool serve(std::string_view& input);
  bool open(std::string_view input);
  bool must_hold(std::string_view input) const;
  proto::RequestReader& reader();
  proto::RequestReader fresh_reader() const;
  bool close(std::string reason);
  // Updates the number of bytes that this session holds. If `input_bytes` bytes of requests and the unread replies
  // exceed max_client_bytes, account() closes the session and returns false.
  bool account(std::size_t input_bytes);

  void answer(const ServerGreeting::Answer& answer);
  // The functions from execute() to forget_waits() serve the operations of requests (server_operations.cc). A
  // StoreError from an operation closes the connection.
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
  bool has_promise_ = false;  // true if an item of a queue woke the client, which has sent no request since
  bool is_urgent_ = false;    // true if unread replies don't hold up the client's requests to the extension
  std::unique_ptr<proto::RequestReader> own_reader_;  // the reader of a request that has arrived in part
  std::unique_ptr<ServerGreeting> greeting_;
  std::string role_;
  std::string run_id_;
  std::unique_ptr<Waiting> waiting_;
  std::string input_;  // the input from the first byte of a request on; empty between requests
  std::string output_;
  std::shared_ptr<const SharedReply> shared_;  // the shared reply, which is sent before output_
  std::size_t sent_ = 0;                       // the number of sent bytes of shared_, or else of output_
  std::size_t held_bytes_ = 0;
  std::string close_reason_;
};

}  // namespace lockstep::store
