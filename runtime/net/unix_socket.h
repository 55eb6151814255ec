// SPDX-License-Identifier: Apache-2.0
// Unix stream sockets in the abstract namespace, and file descriptors passed over them.
//
// An abstract name leaves nothing behind in the file system: it is free again when its listener is closed, also by
// kill -9. It is visible to every process of the network namespace, so whoever connects must be checked with
// peer_credentials(). Once connected, stream.h sends and receives.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::net {

// Longest abstract name, in bytes.
inline constexpr std::size_t kMaxUnixNameBytes = 107;
// Most descriptors in one message (the kernel's SCM_MAX_FD).
inline constexpr std::size_t kMaxPassedFds = 253;

// Listens at `name` (without the leading NUL). Throws InvalidArgument if it is empty or too long; SystemError, with
// error_number() EADDRINUSE, if another process has it.
UniqueFd unix_listen_abstract(std::string_view name);
// Accepts one connection.
UniqueFd unix_accept(int listener, const Deadline& deadline);
inline UniqueFd unix_accept(const UniqueFd& listener, const Deadline& deadline) {
  return unix_accept(listener.get(), deadline);
}
// Connects to `name`; while nobody listens there, retries until the deadline.
UniqueFd unix_connect_abstract(std::string_view name, const Deadline& deadline);

// The process that connected or listened, as the kernel noted it then; it can't be forged.
struct PeerCredentials {
  pid_t pid;
  uid_t uid;
  gid_t gid;
};
PeerCredentials peer_credentials(int fd);

// Sends `bytes`, at least one, and duplicates of `fds` with the first of them. The caller keeps its own descriptors.
void send_with_fds(int fd, std::span<const std::byte> bytes, std::span<const int> fds, const Deadline& deadline);
// Fills all of `bytes`, as recv_exact does, and appends the descriptors that came with them to `fds`, close-on-exec
// set. A receiver whose descriptor table is full gets an error, not fewer descriptors.
void recv_with_fds(int fd, std::span<std::byte> bytes, std::vector<UniqueFd>& fds, const Deadline& deadline);

}  // namespace lockstep::net
