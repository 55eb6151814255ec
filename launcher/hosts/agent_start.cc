// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/agent_start.h"

#include <fmt/format.h>

#include "launcher/flags/run_options.h"
#include "runtime/base/record.h"

namespace lockstep::launcher {
namespace {

constexpr std::string_view kFirstWords = "lockstep-agent 1 ";
constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;

struct StartRecord {
  std::string secret = {};
  int nodes = 0;
  int node_rank = 0;
  std::string nproc_per_node = {};
  std::string endpoint = {};
  std::string texts = {};  // the folder, the arguments, the variables
};

constexpr auto kFields = [](auto& start, auto& fields) {
  fields.kind("agent start 1");
  fields("secret", start.secret);
  fields("nodes", start.nodes, 1, kMaxNodes);
  fields("node-rank", start.node_rank, 0, kMaxNodes - 1);
  fields("nproc-per-node", start.nproc_per_node);
  fields("endpoint", start.endpoint);
  fields.rest("texts", start.texts);
};

}  // namespace

std::string encode(const AgentStart& start) {
  const std::string bytes = write_record(
      StartRecord{
          .secret = start.secret,
          .nodes = start.nodes,
          .node_rank = start.node_rank,
          .nproc_per_node = start.nproc_per_node,
          .endpoint = start.endpoint,
          .texts = write_texts(std::vector{start.folder, write_texts(start.arguments), write_texts(start.variables)})},
      kFields);
  return fmt::format("{}{}\n{}", kFirstWords, bytes.size(), bytes);
}

std::optional<std::size_t> bytes_of_start(std::string_view first_line) {
  if (!first_line.starts_with(kFirstWords)) return std::nullopt;
  const auto bytes = parse_int(first_line.substr(kFirstWords.size()));
  if (!bytes || *bytes < 1 || *bytes > kMostBytes) return std::nullopt;
  return static_cast<std::size_t>(*bytes);
}

std::optional<AgentStart> decode_agent_start(std::string_view bytes) {
  const auto record = read_record<StartRecord>(bytes, kFields);
  const auto texts = record ? read_texts(record->texts) : std::nullopt;
  if (!texts || texts->size() != 3) return std::nullopt;
  auto arguments = read_texts((*texts)[1]);
  auto variables = read_texts((*texts)[2]);
  if (!arguments || !variables) return std::nullopt;
  return AgentStart{.secret = record->secret,
                    .folder = texts->front(),
                    .arguments = std::move(*arguments),
                    .variables = std::move(*variables),
                    .nodes = record->nodes,
                    .node_rank = record->node_rank,
                    .nproc_per_node = record->nproc_per_node,
                    .endpoint = record->endpoint};
}

}  // namespace lockstep::launcher
