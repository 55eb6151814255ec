// SPDX-License-Identifier: Apache-2.0
#include "tests/support/free_port.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::testing {
namespace {

// Below what Linux gives out by itself (32768 to 60999), and below the ports of jobs
// (runtime/rendezvous/identity/identity.h).
constexpr int kFirstPort = 10000;
constexpr int kPorts = 10000;

// Held by a name in this network, which ends with its socket, and so with the process, however that ends. None if
// another process holds it.
UniqueFd hold_port(int port) {
  UniqueFd holder(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!holder) throw SystemError("socket", errno);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const auto text = fmt::format("lockstep-test-port-{}", port);
  std::memcpy(name.sun_path + 1, text.data(), text.size());  // behind a zero: not in the file system
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  if (bind(holder.get(), reinterpret_cast<const sockaddr*>(&name), size) == 0) return holder;
  if (errno != EADDRINUSE) throw SystemError("bind " + text, errno);
  return {};
}

bool somebody_listens(int port) {
  const UniqueFd trial(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!trial) throw SystemError("socket", errno);
  const int on = 1;
  if (setsockopt(trial.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) throw SystemError("SO_REUSEADDR", errno);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (bind(trial.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return false;
  if (errno != EADDRINUSE) throw SystemError(fmt::format("bind 127.0.0.1:{}", port), errno);
  return true;
}

}  // namespace

std::uint16_t free_port() {
  static Mutex mutex;
  static std::vector<UniqueFd> held;
  static int next = getpid() % kPorts * 7;  // processes that start one after the other don't ask for the same ones
  const MutexLock lock(mutex);
  for (int tried = 0; tried < kPorts; ++tried) {
    const int port = kFirstPort + next++ % kPorts;
    UniqueFd holder = hold_port(port);
    if (!holder || somebody_listens(port)) continue;
    held.push_back(std::move(holder));
    return static_cast<std::uint16_t>(port);
  }
  throw Error(fmt::format("no port from {} to {} is free", kFirstPort, kFirstPort + kPorts - 1));
}

}  // namespace lockstep::testing
