// SPDX-License-Identifier: Apache-2.0
// A connected stream socket and the bytes received on it that nobody has consumed.
//
// receive_now() and send_now() never wait: the owner calls them when an EventLoop, or its own poll(2), says that the
// socket is ready. receive() waits, up to a Deadline. The owner bounds what is buffered: input() grows only when the
// owner receives, and the bytes to be sent are the owner's. One thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::net {

class Connection {
 public:
  explicit Connection(UniqueFd fd = {}) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }

  // Bytes received and not consumed, valid until the next of them are received.
  std::string_view input() const { return std::string_view(buffer_.data() + begin_, end_ - begin_); }
  void consume(std::size_t bytes) { begin_ += bytes; }
  // Appends what has come to input(), with one system call. Returns as try_recv() (stream.h).
  std::optional<std::size_t> receive_now();
  // The same, and waits for at least one byte. Throws as recv_some().
  void receive(const Deadline& deadline);

  // Sends as many of `bytes` as the socket takes, and removes them. Returns false, with errno, once the connection has
  // ended.
  bool send_now(std::string& bytes) const;

 private:
  std::span<std::byte> room();

  UniqueFd fd_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of input() in the buffer
  std::size_t end_ = 0;
};

}  // namespace lockstep::net
