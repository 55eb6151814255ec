// SPDX-License-Identifier: Apache-2.0
// Bytes over a connected socket, each call bounded by a Deadline.
//
// Sockets made by this room are non-blocking and close-on-exec; these calls wait with poll(2). Any thread may call
// them, but two threads that send (or receive) on one socket at once mix their bytes: one owner per direction. Errors:
// Timeout when the deadline passes, ConnectionClosed when the peer is gone, SystemError for anything else. After an
// error an unknown part of the bytes was moved, so the connection is of no more use: close it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"

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

// Waits until `fd`, of whatever kind, can be read or has ended, or until it takes more. False if the deadline passed.
bool wait_readable(int fd, const Deadline& deadline);
bool wait_writable(int fd, const Deadline& deadline);

// The other end, for messages: "127.0.0.1:4711", "unix socket @name of pid 4711". Never throws.
std::string describe_peer(int fd) noexcept;

}  // namespace lockstep::net
