// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/printable.h"

#include <algorithm>
#include <cstdint>

namespace lockstep {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // 0: no UTF-8 begins here
};

// The character at the begin of `text`, which is not empty. Overlong forms, surrogates and code points above U+10FFFF
// are not UTF-8.
Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  if (overlong || (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff) return {};
  return {code, bytes};
}

bool is_shown(std::uint32_t code) {
  const auto within = [&](std::uint32_t first, std::uint32_t last) { return code >= first && code <= last; };
  const bool is_control = code < 0x20 || within(0x7f, 0x9f);
  const bool breaks_a_line = within(0x2028, 0x2029);
  const bool turns_text = within(0x202a, 0x202e) || within(0x2066, 0x2069) || within(0x200e, 0x200f);
  return !is_control && !breaks_a_line && !turns_text;
}

}  // namespace

std::string printable_lines(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character next = first_of(text);
    const std::size_t bytes = std::max<std::size_t>(1, next.bytes);
    if (next.bytes > 0 && (next.code == '\n' || is_shown(next.code))) {
      result += text.substr(0, bytes);
    } else {
      result += next.code == '\t' ? ' ' : '?';
    }
    text.remove_prefix(bytes);
  }
  return result;
}

std::string printable(std::string_view text, std::size_t most) {
  std::size_t end = std::min(text.size(), most);
  // Not within a character: one has at most three bytes behind its first.
  for (int i = 0; i < 3 && end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80;
       ++i) {
    --end;
  }
  std::string result = printable_lines(text.substr(0, end));
  std::replace(result.begin(), result.end(), '\n', ' ');
  if (end < text.size()) result += "...";
  return result;
}

std::string_view without_backtrace(std::string_view text) {
  return text.substr(0, text.find("\nException raised from "));
}

}  // namespace lockstep
