// SPDX-License-Identifier: Apache-2.0
#include "tests/support/rank_processes.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::testing {

RankProcesses::RankProcesses(int world_size, const RankOptions& options) {
  const auto port = std::to_string(options.master_port != 0 ? options.master_port : free_port());
  const auto size = std::to_string(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    const auto number = std::to_string(rank);
    Variables variables = {{"RANK", number},           {"WORLD_SIZE", size},         {"LOCAL_RANK", number},
                           {"LOCAL_WORLD_SIZE", size}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
    for (const auto& [name, value] : options.environment) variables[name] = value;
    ranks_.emplace_back(ProcessOptions{.command = options.command,
                                       .environment = std::move(variables),
                                       .name = fmt::format("rank {} of {}", rank, options.command.at(0))});
  }
}

bool RankProcesses::await_output(std::string_view text, const Deadline& deadline) const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [&](const Process& rank) { return rank.await_output(text, 1, deadline); });
}

std::vector<Result> RankProcesses::wait(const Deadline& deadline) {
  std::vector<Result> results;
  for (auto& rank : ranks_) results.push_back(rank.wait(deadline));
  return results;
}

}  // namespace lockstep::testing
