// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace lockstep {

bool can_draw_on(int fd) noexcept {
  const char* const term = std::getenv("TERM");
  return ::isatty(fd) == 1 && term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
}

std::string_view first_columns(std::string_view text, std::size_t columns) noexcept {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins_letter = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (begins_letter && columns-- == 0) return text.substr(0, i);
  }
  return text;
}

std::string_view in_one_line(std::string_view text, int fd) noexcept {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return text;
  return first_columns(text, size.ws_col - 1u);
}

}  // namespace lockstep
