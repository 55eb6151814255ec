// SPDX-License-Identifier: Apache-2.0
// Somebody who connects to a port and knows nothing of who listens there.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "runtime/base/unique_fd.h"

namespace lockstep::testing {

class TcpStranger {
 public:
  // "127.0.0.1:4711". 0, or errno.
  int connect(const std::string& where) {
    const auto colon = where.rfind(':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(where.c_str() + colon + 1)));
    if (::inet_pton(AF_INET, where.substr(0, colon).c_str(), &address.sin_addr) != 1) return EINVAL;
    socket_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
  }
  void send(const std::string& bytes) const { ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }

 private:
  UniqueFd socket_;
};

}  // namespace lockstep::testing
