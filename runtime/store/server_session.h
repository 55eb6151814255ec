// The server's side of one connection as a state machine: bytes of requests in, bytes of replies out. No sockets.
//
// A session begins with a greeting (VALIDATE) and serves requests after it. Frames of authentication belong into the
// greeting. One thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "proto/protocol.h"
#include "proto/request.h"
#include "runtime/store/key_table.h"

namespace lockstep::store {

class ServerSession {
 public:
  // `id` is what this session waits as in `table`, which must outlive it.
  ServerSession(KeyTable& table, KeyTable::WaiterId id, const proto::Limits& limits);
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  // Takes bytes from the client and serves the requests that are complete. False if the connection must be closed, and
  // close_reason() says why; what output() holds may still be sent.
  [[nodiscard]] bool receive(std::string_view bytes);
  // The table has woken this session: answers its WAIT and goes on with what was held behind it. As receive().
  [[nodiscard]] bool wake();

  // Replies that are not sent yet.
  std::string_view output() const { return std::string_view(output_).substr(sent_); }
  // The first `bytes` of output() were sent. This may make room for held requests, which are then served. As receive().
  [[nodiscard]] bool sent(std::size_t bytes);

  // False while so much is held behind a WAIT, or behind replies that the client doesn't read, that no more should be
  // received.
  bool wants_input() const;
  bool greeted() const { return phase_ == Phase::serving; }
  const std::string& close_reason() const { return close_reason_; }

 private:
  enum class Phase { greeting, serving };

  bool serve(std::string_view& input);
  bool must_hold(std::string_view input) const;
  void execute(const proto::Request& request);
  void greet(const proto::Request& request);
  void reply(proto::Op op, const proto::Contents& contents);
  void reply_number(proto::Op op, std::int64_t number);
  void reply_values(proto::Op op, const std::vector<std::string_view>& keys);

  KeyTable& table_;
  const KeyTable::WaiterId id_;
  const proto::Limits limits_;
  proto::RequestReader reader_;
  Phase phase_ = Phase::greeting;
  bool waiting_ = false;  // a WAIT is not answered yet
  std::string input_;     // begins with the first byte of a request; empty between requests
  std::string output_;
  std::size_t sent_ = 0;  // bytes of output_ that are gone
  std::string close_reason_;
};

}  // namespace lockstep::store
