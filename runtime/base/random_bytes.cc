// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/random_bytes.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

std::string hex_digits(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError("getrandom", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::string random_hex(std::size_t bytes) {
  std::vector<std::byte> drawn(bytes);
  fill_random(drawn);
  return hex_digits(drawn);
}

}  // namespace lockstep
