// SPDX-License-Identifier: Apache-2.0
// Bytes over a connected socket, each call bounded by a Deadline.
//
// Sockets made by this room are non-blocking and close-on-exec; these calls wait with poll(2). Any thread may call
// them, but two threads that send (or receive) on one socket at once mix their bytes: one owner per direction. Errors:
// Timeout when the deadline passes, ConnectionClosed when the peer is gone, SystemError for anything else. After an
// error an unknown part of the bytes was moved, so the connection is of no more use: close it.
#pragma once

#include <cerrno>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "runtime/base/io.h"

namespace lockstep::net {

// The peer closed the connection, or its process ended. The message names the peer.
class ConnectionClosed : public PeerLost {
 public:
  using PeerLost::PeerLost;
};

// Sends all of `bytes`.
void send_all(int fd, std::span<const std::byte> bytes, const Deadline& deadline);
inline void send_all(int fd, std::string_view bytes, const Deadline& deadline) {
  send_all(fd, std::as_bytes(std::span(bytes)), deadline);
}
// Fills all of `bytes`.
void recv_exact(int fd, std::span<std::byte> bytes, const Deadline& deadline);
// Receives what is there, at least one byte and at most `bytes.size()`; returns the count.
std::size_t recv_some(int fd, std::span<std::byte> bytes, const Deadline& deadline);
// Never waits: 0 if nothing is there.
std::size_t recv_now(int fd, std::span<std::byte> bytes);

// Move as many of `bytes`, at least one, as the socket takes or has, without waiting. Return as moved_by().
std::optional<std::size_t> try_send(int fd, std::span<const std::byte> bytes) noexcept;
inline std::optional<std::size_t> try_send(int fd, std::string_view bytes) noexcept {
  return try_send(fd, std::as_bytes(std::span(bytes)));
}
std::optional<std::size_t> try_recv(int fd, std::span<std::byte> bytes) noexcept;

// Makes `call`, a system call that moves bytes and does not wait. Returns how many were moved, 0 if none could be now;
// nullopt once the connection has ended, with errno, which is 0 if the peer closed it.
template <typename Call>
std::optional<std::size_t> moved_by(Call call) {
  const auto count = uninterrupted(call);
  if (count > 0) return static_cast<std::size_t>(count);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  if (count == 0) errno = 0;
  return std::nullopt;
}

// Throw the errors of a transfer that has moved `done` of `size` bytes. `operation` is "send to", for example;
// `error_number` as moved_by() leaves it.
[[noreturn]] void throw_failed(std::string_view operation, int fd, int error_number, std::size_t done,
                               std::size_t size);
[[noreturn]] void throw_timeout(std::string_view operation, int fd, std::size_t done, std::size_t size,
                                const Deadline& deadline);

// Waits until `fd`, of whatever kind, can be read or has ended, or until it takes more. False if the deadline passed.
bool wait_readable(int fd, const Deadline& deadline);
bool wait_writable(int fd, const Deadline& deadline);

// The other end, for messages: "127.0.0.1:4711", "unix socket @name of pid 4711". Never throws.
std::string describe_peer(int fd) noexcept;

}  // namespace lockstep::net
