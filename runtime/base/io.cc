// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/io.h"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace lockstep {

std::size_t write_all(int fd, std::string_view bytes) noexcept {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto written = uninterrupted([&] { return ::write(fd, bytes.data() + done, bytes.size() - done); });
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  return done;
}

bool read_all(int fd, std::string& text, std::size_t most) {
  std::array<char, 1 << 16> block;
  while (most > 0) {
    const auto got = uninterrupted([&] { return ::read(fd, block.data(), std::min(block.size(), most)); });
    if (got <= 0) return got == 0;
    text.append(block.data(), static_cast<std::size_t>(got));
    most -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace lockstep
