// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/procfs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>

#include "lockstep/base/environment.h"
#include "runtime/base/io.h"
#include "runtime/base/unique_fd.h"

namespace lockstep {
namespace {

// Takes a space and a number from the front.
template <typename Number>
bool take_number(std::string_view& rest, Number& value) {
  if (!rest.starts_with(' ')) return false;
  const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), value);
  if (error != std::errc{}) return false;
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  return true;
}

}  // namespace

std::string read_kernel_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (file) read_all(file.get(), text);
  return text;
}

std::optional<ProcessEntry> parse_process_stat(std::string_view text) {
  constexpr int kFieldBehindGroup = 6;
  constexpr int kUserField = 14;
  constexpr int kStartField = 22;  // proc(5)
  const auto open = text.find('(');
  const auto close = text.rfind(')');
  if (open == text.npos || open == 0 || close == text.npos || close < open) return std::nullopt;
  const auto pid = parse_int(text.substr(0, open - 1));
  std::string_view rest = text.substr(close + 1);
  if (!pid || rest.size() < 3) return std::nullopt;
  ProcessEntry entry;
  entry.pid = static_cast<pid_t>(*pid);
  entry.name = text.substr(open + 1, close - open - 1);
  entry.state = rest[1];
  rest.remove_prefix(2);
  if (!take_number(rest, entry.parent) || !take_number(rest, entry.group)) return std::nullopt;
  for (int field = kFieldBehindGroup; field < kStartField; ++field) {
    if (field == kUserField && take_number(rest, entry.user) && take_number(rest, entry.system)) field += 2;
    const auto space = rest.find(' ', 1);
    rest.remove_prefix(space == rest.npos ? rest.size() : space);
  }
  take_number(rest, entry.start);
  return entry;
}

std::optional<ProcessEntry> process_entry(pid_t pid) {
  return parse_process_stat(read_kernel_file(fmt::format("/proc/{}/stat", pid)));
}

bool handles_signal(std::string_view status, int signal) {
  constexpr std::string_view kCaught = "\nSigCgt:";
  const std::size_t found = status.find(kCaught);
  if (found == std::string_view::npos || signal < 1 || signal > 64) return false;
  std::string_view mask = status.substr(found + kCaught.size());
  while (mask.starts_with('\t') || mask.starts_with(' ')) mask.remove_prefix(1);
  std::uint64_t caught = 0;
  if (std::from_chars(mask.data(), mask.data() + mask.size(), caught, 16).ec != std::errc()) return false;
  return (caught >> (signal - 1) & 1) != 0;
}

}  // namespace lockstep
