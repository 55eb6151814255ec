// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/agent_start.h"

#include <fmt/format.h>

#include "launcher/flags/run_options.h"
#include "lockstep/base/environment.h"
#include "runtime/base/record.h"

namespace lockstep::launcher {
namespace {

constexpr std::string_view kFirstWords = "lockstep-agent 1 ";
constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;

constexpr auto kFields = [](auto& start, auto& fields) {
  fields.kind("agent start 1");
  fields("secret", start.secret);
  fields("nodes", start.nodes, 1, kMaxNodes);
  fields("node-rank", start.node_rank, 0, kMaxNodes - 1);
  fields("nproc-per-node", start.nproc_per_node);
  fields("endpoint", start.endpoint);
  fields.items("texts", start.folder, start.arguments, start.variables);
};

}  // namespace

std::string encode(const AgentStart& start) {
  const std::string bytes = write_record(start, kFields);
  return fmt::format("{}{}\n{}", kFirstWords, bytes.size(), bytes);
}

std::optional<std::size_t> bytes_of_start(std::string_view first_line) {
  if (!first_line.starts_with(kFirstWords)) return std::nullopt;
  const auto bytes = parse_int(first_line.substr(kFirstWords.size()));
  if (!bytes || *bytes < 1 || *bytes > kMostBytes) return std::nullopt;
  return static_cast<std::size_t>(*bytes);
}

std::optional<AgentStart> decode_agent_start(std::string_view bytes) { return read_record<AgentStart>(bytes, kFields); }

}  // namespace lockstep::launcher
