#include "runtime/membership/member_info.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/environment.h"
#include "runtime/base/host.h"

namespace lockstep::membership {
namespace {

constexpr std::size_t kMostCharacters = 255;
constexpr std::size_t kMostNameCharacters = 64;  // of a collective

bool is_printable(std::string_view text) {
  return text.size() <= kMostCharacters &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

// Text that is_printable() accepts at the server, whatever the host's name is.
std::string printable(std::string_view text) {
  std::string result(text.substr(0, kMostCharacters));
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

bool take(ProcessInfo& info, std::string_view name, std::string_view value) {
  if (name == "host") info.host = value;
  if (name == "boot_id") info.boot_id = value;
  if (name == "pid_namespace") info.pid_namespace = value;
  if (name != "pid") return true;
  const auto pid = parse_int(value);
  if (!pid || *pid < 1 || *pid > (1 << 30)) return false;
  info.pid = static_cast<int>(*pid);
  return true;
}

}  // namespace

ProcessInfo ProcessInfo::of_this_process() {
  return {.host = host_name(),
          .pid = ::getpid(),
          .boot_id = lockstep::boot_id(),
          .pid_namespace = lockstep::pid_namespace()};
}

std::string ProcessInfo::describe() const { return fmt::format("host {}, pid {}", host, pid); }

bool ProcessInfo::shares_pids_with(const ProcessInfo& other) const {
  return !boot_id.empty() && !pid_namespace.empty() && boot_id == other.boot_id && pid_namespace == other.pid_namespace;
}

std::string encode(const ProcessInfo& info) {
  return fmt::format("host {}\npid {}\nboot_id {}\npid_namespace {}\n", printable(info.host), info.pid,
                     printable(info.boot_id), printable(info.pid_namespace));
}

std::optional<ProcessInfo> decode_process_info(std::string_view text) {
  ProcessInfo info;
  while (!text.empty()) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const auto space = line.find(' ');
    if (space == std::string_view::npos || !is_printable(line.substr(space + 1))) return std::nullopt;
    if (!take(info, line.substr(0, space), line.substr(space + 1))) return std::nullopt;
  }
  if (info.host.empty() || info.pid == 0 || info.boot_id.empty()) return std::nullopt;
  return info;
}

ProcessState state_of(const ProcessInfo& other, const ProcessInfo& self) {
  return self.shares_pids_with(other) ? process_state(other.pid) : ProcessState::unknown;
}

std::string MemberPosition::describe() const {
  std::string known = collective;
  if (step >= 0) known += fmt::format("{}step {}", known.empty() ? "" : ", ", step);
  return fmt::format("collective {}{}", sequence, known.empty() ? "" : fmt::format(" ({})", known));
}

std::string flags_of(const MemberPosition& position) {
  std::string flags = position.collective.empty() ? "" : "in=" + position.collective;
  if (position.step >= 0) flags += fmt::format("{}step={}", flags.empty() ? "" : " ", position.step);
  return flags;
}

MemberPosition position_of(std::int64_t sequence, std::string_view flags, bool& traced) {
  MemberPosition position{.sequence = sequence};
  while (!flags.empty()) {
    const std::string_view word = flags.substr(0, flags.find(' '));
    flags.remove_prefix(std::min(flags.size(), word.size() + 1));
    if (word == "traced") traced = true;
    if (word.starts_with("in=") && is_printable(word) && word.size() <= kMostNameCharacters) {
      position.collective = word.substr(3);
    }
    if (word.starts_with("step=")) position.step = std::max<std::int64_t>(-1, parse_int(word.substr(5)).value_or(-1));
  }
  return position;
}

std::string MemberInfo::describe() const { return fmt::format("rank {} ({})", rank, process.describe()); }

}  // namespace lockstep::membership
