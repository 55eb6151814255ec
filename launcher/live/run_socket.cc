// SPDX-License-Identifier: Apache-2.0
#include "launcher/live/run_socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>

#include "lockstep/base/environment.h"
#include "runtime/base/printable.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

constexpr std::size_t kMostTextBytes = 4096;  // limit for a command or a path
constexpr std::size_t kMostIdBytes = 40;      // limit for a run id in a socket's name
constexpr std::size_t kMostLines = 1'000'000;

constexpr auto kFactsFields = [](auto& facts, auto& fields) {
  fields.kind("run 1");
  for_each_fact(facts, fields);
  fields("stops", facts.stops, 0);
};

// Replaces a letter for a name in a list whose columns are separated by blanks.
char as_in_a_name(char letter) {
  const auto byte = static_cast<unsigned char>(letter);
  return std::isalnum(byte) != 0 || letter == '-' || letter == '_' || letter == '.' ? letter : '_';
}

std::string prefix_of(uid_t user) { return fmt::format("lockstep-run/{}/", user); }

}  // namespace

std::string encode(const RunFacts& facts) { return write_record(facts, kFactsFields); }

std::optional<RunFacts> decode_run_facts(std::string_view text) {
  auto facts = read_record<RunFacts>(text, kFactsFields);
  if (!facts) return std::nullopt;
  for (std::string* of : {&facts->run_id, &facts->host, &facts->log_dir, &facts->command}) {
    *of = printable(*of, kMostTextBytes);
  }
  return facts;
}

std::string encode(const RunRequest& request) {
  switch (request.what) {
    case RunRequest::What::ps: return "ps\n";
    case RunRequest::What::top: return "top\n";
    case RunRequest::What::stop: return "stop\n";
    case RunRequest::What::stacks: return fmt::format("stacks {} {}\n", request.rank, request.pid);
    case RunRequest::What::logs: return fmt::format("logs {} {}\n", request.lines, request.follow ? 1 : 0);
  }
  return {};
}

std::optional<RunRequest> decode_run_request(std::string_view line) {
  if (line == "ps") return RunRequest{.what = RunRequest::What::ps};
  if (line == "top") return RunRequest{.what = RunRequest::What::top};
  if (line == "stop") return RunRequest{.what = RunRequest::What::stop};
  const std::string_view what = take_word(line);
  if (what == "stacks") {
    const auto rank = parse_int(take_word(line));
    const auto pid = parse_int(line);
    constexpr std::int64_t kMost = std::numeric_limits<int>::max();
    if (!rank || !pid || *rank < 0 || *pid < 0 || *rank > kMost || *pid > kMost) return std::nullopt;
    return RunRequest{.what = RunRequest::What::stacks, .rank = static_cast<int>(*rank), .pid = static_cast<int>(*pid)};
  }
  if (what != "logs") return std::nullopt;
  const auto lines = parse_int(take_word(line));
  if (!lines || *lines < 0 || (line != "0" && line != "1")) return std::nullopt;
  return RunRequest{.what = RunRequest::What::logs,
                    .lines = std::min(static_cast<std::size_t>(*lines), kMostLines),
                    .follow = line == "1"};
}

std::string run_socket_name(uid_t user, std::string_view token, std::string_view run_id) {
  std::string id(run_id.substr(0, kMostIdBytes));
  std::transform(id.begin(), id.end(), id.begin(), as_in_a_name);
  return fmt::format("{}{}/{}", prefix_of(user), token, id);
}

std::vector<std::string> run_sockets(std::string_view proc_net_unix, uid_t user) {
  // "Num: RefCount Protocol Flags Type St Inode Path"; the flag 0x10000 marks a listening socket.
  const std::string prefix = "@" + prefix_of(user);
  std::set<std::string> names;
  while (!proc_net_unix.empty()) {
    std::string_view line = take_word(proc_net_unix, '\n');
    const auto at = line.find(" " + prefix);
    if (at == line.npos) continue;
    const std::string name(line.substr(at + 2));
    for (int column = 0; column < 3; ++column) take_word(line);
    if (take_word(line) == "00010000") names.insert(name);
  }
  return {names.begin(), names.end()};
}

std::string run_id_of(std::string_view socket_name) {
  // Another user's process may listen under any name.
  std::string id(socket_name.substr(socket_name.rfind('/') + 1));
  std::ranges::transform(id, id.begin(), as_in_a_name);
  return id;
}

}  // namespace lockstep::launcher
