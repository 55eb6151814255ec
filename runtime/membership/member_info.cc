// SPDX-License-Identifier: Apache-2.0
#include "runtime/membership/member_info.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/base/environment.h"
#include "runtime/base/host.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"

namespace lockstep::membership {
namespace {

constexpr std::size_t kMostCharacters = 255;
constexpr std::size_t kMostNameCharacters = 64;       // of a collective
constexpr std::size_t kMostTotalsCharacters = 16392;  // with their name

bool is_printable(std::string_view text, std::size_t most = kMostCharacters) {
  return text.size() <= most && std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

// Text that is_printable() accepts at the server, whatever the host's name is.
std::string sendable(std::string_view text) {
  std::string result(text.substr(0, kMostCharacters));
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

constexpr auto kProcessFields = [](auto& info, auto& fields) {
  fields("host", info.host);
  fields("pid", info.pid, 1, 1 << 30);
  fields("boot_id", info.boot_id);
  fields.optional("pid_namespace", info.pid_namespace);
};

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
  ProcessInfo sent = info;
  for (std::string* text : {&sent.host, &sent.boot_id, &sent.pid_namespace}) *text = sendable(*text);
  return write_record(sent, kProcessFields);
}

std::optional<ProcessInfo> decode_process_info(std::string_view text) {
  auto info = read_record<ProcessInfo>(text, kProcessFields);
  if (!info || info->host.empty() || info->boot_id.empty()) return std::nullopt;
  const bool may_be_shown =
      is_printable(info->host) && is_printable(info->boot_id) && is_printable(info->pid_namespace);
  return may_be_shown ? info : std::nullopt;
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
  std::string flags;
  const auto add = [&flags](std::string_view name, const auto& value) {
    flags += fmt::format("{}{}={}", flags.empty() ? "" : " ", name, value);
  };
  if (!position.collective.empty()) add("in", position.collective);
  if (position.step >= 0) add("step", position.step);
  if (position.steps_done > 0) add("done", position.steps_done);
  if (!position.totals.empty()) add("totals", position.totals);
  return flags;
}

MemberPosition position_of(std::int64_t sequence, std::string_view flags, bool& traced) {
  MemberPosition position{.sequence = sequence};
  while (!flags.empty()) {
    const std::string_view word = take_word(flags);
    if (word == "traced") traced = true;
    if (word.starts_with("in=") && is_printable(word, kMostNameCharacters)) {
      position.collective = word.substr(3);
    }
    if (word.starts_with("step=")) position.step = std::max<std::int64_t>(-1, parse_int(word.substr(5)).value_or(-1));
    if (word.starts_with("done="))
      position.steps_done = std::max<std::int64_t>(0, parse_int(word.substr(5)).value_or(0));
    if (word.starts_with("totals=") && is_printable(word, kMostTotalsCharacters)) {
      position.totals = word.substr(7);
    }
  }
  return position;
}

std::string MemberInfo::describe() const { return fmt::format("rank {} ({})", rank, process.describe()); }

}  // namespace lockstep::membership
