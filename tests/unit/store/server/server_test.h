// SPDX-License-Identifier: Apache-2.0
// What the tests of the server share: clients that send whatever they like, and the log's lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "proto/reply.h"
#include "proto/request.h"
#include "runtime/base/logging.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::store {

inline Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }

inline std::string request(proto::Op op, proto::Contents contents = {},
                           proto::Dialect dialect = proto::Dialect::current) {
  std::string bytes;
  if (dialect == proto::Dialect::current) {
    proto::write_request(bytes, {op, std::move(contents)});
  } else {
    proto::write_request(bytes, {op, std::move(contents)}, dialect);
  }
  return bytes;
}
inline std::string legacy_request(proto::Op op, proto::Contents contents = {}) {
  return request(op, std::move(contents), proto::Dialect::legacy);
}

// How a client of PyTorch opens, and one of lockstep at an open server; what that one answers.
inline const std::string kGreeting = request(proto::Op::validate, {{}, {}, proto::kMagic});
inline const std::string kHello =
    request(proto::Op::hello, {{}, {"", "raw", std::string(proto::kNonceBytes, 'n')}, proto::kVersion});
inline const std::string kWelcome = std::string(9, '\0');

// A frame as it goes over the wire.
inline std::string frame(std::uint8_t status, const std::vector<std::string_view>& list = {}) {
  std::string bytes;
  proto::write_reply(bytes, proto::Op::set_acked, {{}, list, status});
  return bytes;
}

// A client that sends whatever it likes.
class RawClient {
 public:
  explicit RawClient(const TcpStoreServer& server) : fd_(net::tcp_connect(server.address(), soon())) {}

  void send(std::string_view bytes) { net::send_all(fd_.get(), bytes, soon()); }
  std::string receive(std::size_t bytes) {
    std::string text(bytes, '\0');
    net::recv_exact(fd_.get(), std::as_writable_bytes(std::span(text)), soon());
    return text;
  }
  // All that comes until the server closes the connection.
  std::string receive_all() {
    std::string text;
    try {
      for (;;) text += receive(1);
    } catch (const net::ConnectionClosed&) {
      return text;
    }
  }
  bool is_closed() {
    receive_all();
    return true;
  }
  bool is_silent(std::chrono::milliseconds time) { return !net::wait_readable(fd_.get(), Deadline::after(time)); }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

// Takes the log's lines for a scope.
class LogLines {
 public:
  LogLines() {
    set_log_sink([this](LogLevel, std::string_view text) {
      MutexLock lock(mutex_);
      lines_.emplace_back(text);
      changed_.notify_all();
    });
  }
  ~LogLines() { set_log_sink({}); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  // The first line that has `text` in it, for which it waits; empty if none comes.
  std::string wait_for(std::string_view text) EXCLUDES(mutex_) {
    const Deadline limit = soon();
    MutexLock lock(mutex_);
    for (;;) {
      for (const std::string& line : lines_) {
        if (line.find(text) != line.npos) return line;
      }
      if (!changed_.wait_until(mutex_, limit)) return {};
    }
  }
  // Those so far that have `text` in them.
  std::vector<std::string> lines(std::string_view text) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::vector<std::string> result;
    for (const std::string& line : lines_) {
      if (line.find(text) != line.npos) result.push_back(line);
    }
    return result;
  }
  std::size_t count(std::string_view text) { return lines(text).size(); }

 private:
  Mutex mutex_;
  Condition changed_;
  std::vector<std::string> lines_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::store
