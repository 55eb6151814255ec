// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/stream.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>

#include "runtime/net/address.h"

namespace lockstep::net {
namespace {

bool wait_for(int fd, short events, const Deadline& deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, deadline.poll_timeout_ms());
    if (ready > 0) return true;
    if (ready == 0 && deadline.expired()) return false;
    if (ready < 0 && errno != EINTR) throw SystemError("poll", errno);
  }
}

bool is_closed(int error_number) {
  return error_number == ECONNRESET || error_number == EPIPE || error_number == ENOTCONN;
}

[[noreturn]] void throw_failed(const char* operation, int fd, int error_number, std::size_t done, std::size_t size) {
  const std::string text = fmt::format("{} {}: {} of {} bytes done", operation, describe_peer(fd), done, size);
  if (is_closed(error_number)) {
    throw ConnectionClosed(fmt::format("{}, then the peer closed the connection: {}", text, errno_text(error_number)));
  }
  throw SystemError(text, error_number);
}

[[noreturn]] void throw_timeout(const char* operation, int fd, std::size_t done, std::size_t size,
                                const Deadline& deadline) {
  throw Timeout(fmt::format("{} {}: timed out with {} of {} bytes done, {}", operation, describe_peer(fd), done, size,
                            deadline.progress()));
}

}  // namespace

bool wait_readable(int fd, const Deadline& deadline) { return wait_for(fd, POLLIN, deadline); }
bool wait_writable(int fd, const Deadline& deadline) { return wait_for(fd, POLLOUT, deadline); }

void send_all(int fd, std::span<const std::byte> bytes, const Deadline& deadline) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t sent = ::send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_writable(fd, deadline)) throw_timeout("send to", fd, done, bytes.size(), deadline);
    } else if (errno != EINTR) {
      throw_failed("send to", fd, errno, done, bytes.size());
    }
  }
}

namespace {

// Receives what is there behind the first `done` of `bytes`, 0 if nothing is; the counts are for messages.
std::size_t recv_part_now(int fd, std::span<std::byte> bytes, std::size_t done) {
  for (;;) {
    const ssize_t received = ::recv(fd, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT);
    if (received > 0) return static_cast<std::size_t>(received);
    if (received == 0) {
      throw ConnectionClosed(fmt::format("receive from {}: {} of {} bytes done, then the peer closed the connection",
                                         describe_peer(fd), done, bytes.size()));
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) throw_failed("receive from", fd, errno, done, bytes.size());
  }
}

// At least one byte.
std::size_t recv_part(int fd, std::span<std::byte> bytes, std::size_t done, const Deadline& deadline) {
  for (;;) {
    if (const std::size_t received = recv_part_now(fd, bytes, done)) return received;
    if (!wait_readable(fd, deadline)) throw_timeout("receive from", fd, done, bytes.size(), deadline);
  }
}

}  // namespace

std::size_t recv_now(int fd, std::span<std::byte> bytes) { return recv_part_now(fd, bytes, 0); }

std::size_t recv_some(int fd, std::span<std::byte> bytes, const Deadline& deadline) {
  return recv_part(fd, bytes, 0, deadline);
}

void recv_exact(int fd, std::span<std::byte> bytes, const Deadline& deadline) {
  std::size_t done = 0;
  while (done < bytes.size()) done += recv_part(fd, bytes, done, deadline);
}

std::string describe_peer(int fd) noexcept {
  try {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      return fmt::format("a peer that is gone (socket {})", fd);
    }
    if (address.ss_family != AF_UNIX) return describe_address(reinterpret_cast<const sockaddr*>(&address), size);
    ucred credentials{};
    socklen_t credentials_size = sizeof(credentials);
    const bool known = ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &credentials_size) == 0;
    return fmt::format("{} of pid {}", describe_address(reinterpret_cast<const sockaddr*>(&address), size),
                       known ? credentials.pid : 0);
  } catch (...) {  // Only ever part of a message about something worse.
    return "a peer";
  }
}

}  // namespace lockstep::net
