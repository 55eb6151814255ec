#include "runtime/base/random_bytes.h"

#include <sys/random.h>

#include <cerrno>

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

}  // namespace lockstep
