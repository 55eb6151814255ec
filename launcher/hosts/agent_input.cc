// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/agent_input.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <utility>
#include <variant>

#include "launcher/base/exit_codes.h"
#include "launcher/base/system.h"
#include "launcher/flags/run_options.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/base/record.h"

namespace lockstep::launcher {
namespace {

InvalidArgument not_ours() {
  return InvalidArgument(
      "`lockstep agent` is started by `lockstep run -H` and `lockstep doctor -H`, which write to its standard input; "
      "start one of these instead");
}

}  // namespace

AgentInput::AgentInput() {
  const auto size = bytes_of_start(read_line());
  if (!size) throw not_ours();
  std::string bytes(*size, '\0');
  for (std::size_t have = 0; have < bytes.size();) {
    const auto count = uninterrupted([&] { return read(STDIN_FILENO, bytes.data() + have, bytes.size() - have); });
    if (count <= 0) throw not_ours();
    have += static_cast<std::size_t>(count);
  }
  auto start = decode_agent_start(bytes);
  if (!start) throw not_ours();
  start_ = std::move(*start);
  secret_ = store::Secret::parse(start_.secret);
}

AgentInput::~AgentInput() {
  leaving_.notify();
  if (thread_.joinable()) thread_.join();
}

// Reads byte by byte, since the bytes behind the line are for later reads. Empty at the input's end.
std::string AgentInput::read_line(std::size_t most_bytes) {
  std::string line;
  for (char byte = 0; line.size() < most_bytes; line += byte) {
    if (uninterrupted([&] { return read(STDIN_FILENO, &byte, 1); }) != 1) return {};
    if (byte == '\n') break;
  }
  return line;
}

std::string AgentInput::await_endpoint() {
  while (true) {
    const std::string line = read_line();
    if (line.empty())
      throw StoreError(
          "this host did not get the address of the job's store: the first host's launcher did not start, or has "
          "ended; look at what that launcher wrote");
    if (line.starts_with(kEndpointLine)) return line.substr(kEndpointLine.size());
    if (line.starts_with(kSignalLine)) raise(std::atoi(line.c_str() + kSignalLine.size()));
  }
}

void AgentInput::watch(std::chrono::nanoseconds stop_timeout) {
  thread_ = start_quiet_thread([this, stop_timeout] { follow(stop_timeout); });
}

// Sends a signal to the whole process instead of handling it here: the main thread takes it from its descriptor, as it
// takes one from the terminal.
void AgentInput::follow(std::chrono::nanoseconds stop_timeout) {
  const auto wait = [this](bool for_input, int milliseconds) {
    pollfd entries[] = {{leaving_.fd(), POLLIN, 0}, {for_input ? STDIN_FILENO : -1, POLLIN, 0}};
    uninterrupted([&] { return poll(entries, 2, milliseconds); });
    return entries[0].revents == 0;
  };
  while (wait(true, -1)) {
    const std::string line = read_line();
    if (line.starts_with(kSignalLine)) kill(getpid(), std::atoi(line.c_str() + kSignalLine.size()));
    if (!line.empty()) continue;
    print_error(
        "lockstep agent: the `lockstep run` that started this agent has ended, or the connection to it was lost; "
        "ending the ranks");
    kill(getpid(), SIGTERM);
    if (wait(false, Deadline::after(stop_timeout).poll_timeout_ms())) kill(getpid(), SIGTERM);
    wait(false, -1);
    return;
  }
}

int agent_command(const AgentTasks& tasks) {
  try {
    AgentInput input;
    const AgentStart& start = input.start();
    for (const auto& variable : start.variables) {
      const auto equals = variable.find('=');
      if (equals != std::string::npos) {
        setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
      }
    }
    if (chdir(start.folder.c_str()) != 0) {
      input.problem = fmt::format(
          "can't start the ranks in the folder {}: {}; ranks start in the folder where `lockstep run -H` was started; "
          "make this folder on each host",
          start.folder, errno_text(errno));
    }
    auto command = parse_command_line(start.arguments);
    if (std::holds_alternative<DoctorOptions>(command)) {
      print_error(kHereLine);
      return tasks.examine(input);
    }
    auto* options = std::get_if<RunOptions>(&command);
    if (options == nullptr) throw not_ours();
    options->nodes = options->least_nodes = start.nodes;
    options->node_rank = start.node_rank;
    options->nproc_per_node = start.nproc_per_node;
    options->ranks.reset();
    print_error(kHereLine);
    const bool waits = start.endpoint.ends_with(":0") && start.node_rank != 0;
    options->endpoint = net::parse_host_port(waits ? input.await_endpoint() : start.endpoint);
    if (options->master_addr == RunOptions{}.master_addr) options->master_addr = options->endpoint.host;
    return tasks.run(input, *options);
  } catch (const Error& error) {
    print_error(fmt::format("lockstep agent: {}", error.what()));
    return kExitUsage;
  }
}

namespace {

constexpr std::string_view kFirstWords = "lockstep-agent 1 ";
constexpr std::int64_t kMostStartBytes = std::int64_t{16} << 20;

constexpr auto kFields = [](auto& start, auto& fields) {
  fields.kind("agent start");
  fields("secret", start.secret);
  fields("nodes", start.nodes, 1, kMaxNodes);
  fields("node-rank", start.node_rank, 0, kMaxNodes - 1);
  fields("nproc-per-node", start.nproc_per_node);
  fields("endpoint", start.endpoint);
  fields.lines("folder", start.folder);
  fields.list("arguments", start.arguments);
  fields.list("variables", start.variables);
};

}  // namespace

std::string encode(const AgentStart& start) {
  const std::string bytes = write_record(start, kFields);
  return fmt::format("{}{}\n{}", kFirstWords, bytes.size(), bytes);
}

std::optional<std::size_t> bytes_of_start(std::string_view first_line) {
  if (!first_line.starts_with(kFirstWords)) return std::nullopt;
  const auto bytes = parse_int(first_line.substr(kFirstWords.size()));
  if (!bytes || *bytes < 1 || *bytes > kMostStartBytes) return std::nullopt;
  return static_cast<std::size_t>(*bytes);
}

std::optional<AgentStart> decode_agent_start(std::string_view bytes) { return read_record<AgentStart>(bytes, kFields); }

}  // namespace lockstep::launcher
