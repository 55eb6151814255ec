#include "tests/support/rank_processes.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/error.h"
#include "runtime/base/unique_fd.h"

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

int free_port() {
  const UniqueFd socket_fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_fd) throw SystemError("socket", errno);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(socket_fd.get(), generic, length) != 0 || getsockname(socket_fd.get(), generic, &length) != 0) {
    throw SystemError("bind 127.0.0.1:0", errno);
  }
  return ntohs(address.sin_port);
}

}  // namespace lockstep::testing
