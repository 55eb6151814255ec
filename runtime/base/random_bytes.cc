#include "runtime/base/random_bytes.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <vector>

#include "runtime/base/error.h"

namespace lockstep {

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
  std::string text;
  for (const std::byte byte : drawn) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

}  // namespace lockstep
