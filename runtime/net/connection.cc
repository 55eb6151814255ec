// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/connection.h"

#include <algorithm>
#include <cstring>

#include "runtime/net/stream.h"

namespace lockstep::net {
namespace {

constexpr std::size_t kFirstBuffer = std::size_t{4} << 10;
// A larger buffer is freed once all of it is consumed.
constexpr std::size_t kKeptBuffer = std::size_t{256} << 10;

}  // namespace

std::optional<std::size_t> Connection::receive_now() {
  const auto received = try_recv(fd(), room());
  end_ += received.value_or(0);
  return received;
}

void Connection::receive(const Deadline& deadline) { end_ += recv_some(fd(), room(), deadline); }

bool Connection::send_now(std::string& bytes) const {
  while (!bytes.empty()) {
    const auto sent = try_send(fd(), bytes);
    if (!sent) return false;
    if (*sent == 0) break;
    bytes.erase(0, *sent);
  }
  return true;
}

// Makes room for at least one byte behind the input.
std::span<std::byte> Connection::room() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (buffer_.size() > kKeptBuffer) std::vector<char>().swap(buffer_);
  } else if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  if (end_ == buffer_.size()) buffer_.resize(std::max(kFirstBuffer, 2 * buffer_.size()));
  return std::as_writable_bytes(std::span(buffer_)).subspan(end_);
}

}  // namespace lockstep::net
