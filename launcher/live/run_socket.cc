// SPDX-License-Identifier: Apache-2.0
#include "launcher/live/run_socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "runtime/base/printable.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

constexpr std::size_t kMostTextBytes = 4096;  // limit for a command or a path
constexpr std::size_t kMostIdBytes = 40;      // limit for a run id in a socket's name

constexpr auto kFactsFields = [](auto& facts, auto& fields) {
  fields.kind("run");
  for_each_fact(facts, fields);
  fields("stops", facts.stops, 0);
};

constexpr auto kRequestFields = [](auto& request, auto& fields) {
  fields.kind("request");
  fields("what", request.what, RunRequest::What::logs);
  fields("lines", request.lines, std::size_t{0}, kMostLines);
  fields("follow", request.follow);
  fields("rank", request.rank, 0);
  fields("pid", request.pid, 0);
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

std::string encode(const RunRequest& request) { return escaped(write_record(request, kRequestFields)) + '\n'; }

std::optional<RunRequest> decode_run_request(std::string_view line) {
  return read_record<RunRequest>(unescaped(line), kRequestFields);
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
