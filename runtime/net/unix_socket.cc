// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/unix_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/net/backoff.h"
#include "runtime/net/stream.h"

namespace lockstep::net {
namespace {

struct UnixAddress {
  sockaddr_un address{};
  socklen_t size = 0;

  UnixAddress() = default;
  explicit UnixAddress(std::string_view name) {
    if (name.empty() || name.size() > kMaxUnixNameBytes) {
      throw InvalidArgument(fmt::format("unix socket @{}: the socket's name has {} bytes; give a name of 1 to {} bytes",
                                        name, name.size(), kMaxUnixNameBytes));
    }
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());  // The leading NUL makes it abstract.
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw SystemError("socket(AF_UNIX)", errno);
  return fd;
}

// Returns the name of the socket for a message, with an '@' for the leading NUL of an abstract name.
std::string name_of(int socket) {
  UnixAddress found;
  found.size = sizeof(found.address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&found.address), &found.size) != 0) return "?";
  constexpr std::size_t kBefore = offsetof(sockaddr_un, sun_path);
  if (found.size <= kBefore + 1) return "?";
  const std::string_view name(found.address.sun_path, found.size - kBefore);
  return name.front() == '\0' ? "@" + printable(name.substr(1)) : printable(name.substr(0, name.find('\0')));
}

// Room for one SCM_RIGHTS message of the largest size, aligned as the kernel wants it.
struct ControlBuffer {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxPassedFds * sizeof(int))> bytes{};
};

// Moves the descriptors of a received message to `fds`, so that none leaks whatever comes next.
void take_fds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

}  // namespace

UniqueFd unix_listen_abstract(std::string_view name) {
  const UnixAddress address(name);
  UniqueFd fd = make_socket();
  if (::bind(fd.get(), address.get(), address.size) != 0) {
    throw SystemError(fmt::format("unix socket @{}: bind", name), errno);
  }
  if (::listen(fd.get(), SOMAXCONN) != 0) throw SystemError(fmt::format("unix socket @{}: listen", name), errno);
  return fd;
}

UniqueFd unix_accept(int listener, const Deadline& deadline) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) return fd;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_readable(listener, deadline)) {
        throw Timeout(
            fmt::format("unix socket {}: accept timed out, {}: nobody connected; see whether the process that should "
                        "connect to this socket still runs",
                        name_of(listener), deadline.progress()));
      }
    } else if (errno != EINTR && errno != ECONNABORTED) {
      throw SystemError(fmt::format("unix socket {}: accept", name_of(listener)), errno);
    }
  }
}

UniqueFd unix_connect_abstract(std::string_view name, const Deadline& deadline) {
  const UnixAddress address(name);
  Backoff backoff(std::chrono::microseconds(200), std::chrono::milliseconds(20));
  for (;;) {
    UniqueFd fd = make_socket();
    if (::connect(fd.get(), address.get(), address.size) == 0) return fd;
    const int error = errno;
    // Refused: nobody listens yet. Try again: the listener's queue is full.
    if (error != ECONNREFUSED && error != EAGAIN && error != EINTR) {
      throw SystemError(fmt::format("unix socket @{}: connect", name), error);
    }
    if (!backoff.pause(deadline)) {
      throw Timeout(
          fmt::format("unix socket @{}: connect timed out, {}: {}; look at the output of the process that should "
                      "listen at this socket, which has not started or has ended",
                      name, deadline.progress(), errno_text(error)));
    }
  }
}

PeerCredentials peer_credentials(int fd) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    throw SystemError("unix socket: getsockopt(SO_PEERCRED)", errno);
  }
  return {credentials.pid, credentials.uid, credentials.gid};
}

void send_with_fds(int fd, std::span<const std::byte> bytes, std::span<const int> fds, const Deadline& deadline) {
  if (bytes.empty() || fds.size() > kMaxPassedFds) {
    throw InvalidArgument(fmt::format(
        "send_with_fds: {} bytes and {} descriptors were given; give at least 1 byte and at most {} descriptors",
        bytes.size(), fds.size(), kMaxPassedFds));
  }
  ControlBuffer control;
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  Backoff backoff(std::chrono::microseconds(200), std::chrono::milliseconds(20));
  for (;;) {
    const auto sent = moved_by([&] { return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
    if (sent == 0) {
      if (!wait_writable(fd, deadline)) {
        throw Timeout(
            fmt::format("send of {} descriptors to {}: timed out, {}; the peer does not read: see whether the peer's "
                        "process still runs",
                        fds.size(), describe_peer(fd), deadline.progress()));
      }
    } else if (sent) {
      return send_all(fd, bytes.subspan(*sent), deadline);
    } else if (errno == ETOOMANYREFS) {
      // As many of this user's descriptors are on their way as it may have open: their receivers take them.
      if (!backoff.pause(deadline)) {
        throw Timeout(
            fmt::format("send of {} descriptors to {}: timed out, {}; more descriptors are on their way than 'ulimit "
                        "-n' allows, and no process receives them: raise 'ulimit -n'",
                        fds.size(), describe_peer(fd), deadline.progress()));
      }
    } else {
      throw_failed(fmt::format("send of {} descriptors to", fds.size()), fd, errno, 0, bytes.size());
    }
  }
}

void recv_with_fds(int fd, std::span<std::byte> bytes, std::vector<UniqueFd>& fds, const Deadline& deadline) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    ControlBuffer control;
    iovec part{bytes.data() + done, bytes.size() - done};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    const auto received = moved_by([&] { return ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT); });
    if (!received) throw_failed("receive from", fd, errno, done, bytes.size());
    if (*received == 0) {
      if (!wait_readable(fd, deadline)) throw_timeout("receive from", fd, done, bytes.size(), deadline);
      continue;
    }
    take_fds(message, fds);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      throw Error(
          fmt::format("receive of descriptors from {}: this process may not open as many files as the peer sent "
                      "descriptors; raise 'ulimit -n'",
                      describe_peer(fd)));
    }
    done += *received;
  }
}

}  // namespace lockstep::net
