// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/host.h"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <fstream>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"

namespace lockstep {

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, HOST_NAME_MAX) != 0) throw SystemError("gethostname", errno);
  return *name == '\0' ? "localhost" : printable(name);
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  if (!std::getline(file, text) || text.empty()) {
    throw SystemError("this process can't read /proc/sys/kernel/random/boot_id (mount /proc, without subset=pid)",
                      errno);
  }
  return text;
}

std::string network_namespace() {
  char name[64];
  const ssize_t size = readlink("/proc/self/ns/net", name, sizeof name);
  if (size < 0) throw SystemError("this process can't read /proc/self/ns/net (mount /proc, without subset=pid)", errno);
  return {name, static_cast<std::size_t>(size)};
}

}  // namespace lockstep
