// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/stream.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

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

}  // namespace

std::optional<std::size_t> try_send(int fd, std::span<const std::byte> bytes) noexcept {
  return moved_by([&] { return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT); });
}

std::optional<std::size_t> try_recv(int fd, std::span<std::byte> bytes) noexcept {
  return moved_by([&] { return ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT); });
}

void throw_failed(std::string_view operation, int fd, int error_number, std::size_t done, std::size_t size) {
  const std::string text = fmt::format("{} {}: {} of {} bytes done", operation, describe_peer(fd), done, size);
  if (error_number == 0) throw ConnectionClosed(text + ", then the peer closed the connection");
  if (is_closed(error_number)) {
    throw ConnectionClosed(fmt::format("{}, then the peer closed the connection: {}", text, errno_text(error_number)));
  }
  throw SystemError(text, error_number);
}

void throw_timeout(std::string_view operation, int fd, std::size_t done, std::size_t size, const Deadline& deadline) {
  throw Timeout(
      fmt::format("{} {}: timed out with {} of {} bytes done, {}; see whether the process at the other end still runs",
                  operation, describe_peer(fd), done, size, deadline.progress()));
}

bool wait_readable(int fd, const Deadline& deadline) { return wait_for(fd, POLLIN, deadline); }
bool wait_writable(int fd, const Deadline& deadline) { return wait_for(fd, POLLOUT, deadline); }

void send_all(int fd, std::span<const std::byte> bytes, const Deadline& deadline) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto sent = try_send(fd, bytes.subspan(done));
    if (!sent) throw_failed("send to", fd, errno, done, bytes.size());
    if (*sent == 0 && !wait_writable(fd, deadline)) throw_timeout("send to", fd, done, bytes.size(), deadline);
    done += *sent;
  }
}

namespace {

// Receives what is there behind the first `done` of `bytes`, 0 if nothing is; the counts are for messages.
std::size_t recv_part_now(int fd, std::span<std::byte> bytes, std::size_t done) {
  const auto received = try_recv(fd, bytes.subspan(done));
  if (!received) throw_failed("receive from", fd, errno, done, bytes.size());
  return *received;
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
      return "a peer that is gone";
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
