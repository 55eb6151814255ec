// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/remote_agents.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "launcher/flags/host_list.h"
#include "launcher/process/find_program.h"
#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/io.h"
#include "runtime/base/regular_file.h"
#include "runtime/base/text.h"
#include "runtime/net/interfaces.h"

namespace lockstep::launcher {
namespace {

bool is_this_host(const std::string& name) {
  return net::is_localhost(name) || name == "127.0.0.1" || name == "::1" || name == host_name();
}

// Reads a file, or the output of a program: --hostfile <(scontrol show hostnames).
std::string text_of_hostfile(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  constexpr int kSeconds = 10;
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  const auto refuse = [&](int error) {
    throw InvalidArgument(
        fmt::format("--hostfile {} can't be read: {}; give a file that can be read", path, errno_text(error)));
  };
  if (!fd) refuse(errno);
  std::error_code none;
  if (!std::filesystem::is_fifo(path, none)) return read_regular(path, kMostBytes);
  std::string text;
  while (!read_all(fd.get(), text, kMostBytes)) {
    if (errno != EAGAIN) refuse(errno);
    pollfd one{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (poll(&one, 1, kSeconds * 1000) > 0) continue;
    throw InvalidArgument(
        fmt::format("--hostfile {}: the program that writes this file did not finish within {} s; give a file, or a "
                    "program that ends",
                    path, kSeconds));
  }
  return text;
}

}  // namespace

std::vector<HostEntry> named_hosts(const RunOptions& options) {
  std::vector<HostEntry> hosts = options.hosts;
  if (!options.hostfile.empty()) {
    std::error_code none;
    if (std::filesystem::is_directory(options.hostfile, none)) {
      throw InvalidArgument(
          fmt::format("--hostfile {}: that is a folder; give the name of a file in this folder", options.hostfile));
    }
    hosts = parse_hostfile(text_of_hostfile(options.hostfile), options.hostfile);
  }
  if (hosts.size() > static_cast<std::size_t>(kMaxNodes)) {
    throw InvalidArgument(fmt::format("-H and --hostfile name {} hosts, but a job has at most {}; name fewer hosts",
                                      hosts.size(), kMaxNodes));
  }
  return options.ranks ? first_slots(hosts, *options.ranks) : hosts;
}

std::string folder_of_ranks() {
  std::error_code error;
  const auto folder = std::filesystem::current_path(error);
  if (!error) return folder.string();
  throw InvalidArgument(
      fmt::format("-H: the folder that this command was started in, and in which the ranks would start, has been "
                  "removed: {}; change to another folder",
                  errno_text(error.value())));
}

std::string endpoint_of(const RunOptions& options, const std::vector<HostEntry>& hosts,
                        const Environment& environment) {
  if (!options.endpoint.host.empty()) return options.endpoint.to_string();
  if (hosts.size() == 1) return "127.0.0.1:0";
  const std::string& first = hosts.front().name;
  const std::string host = is_this_host(first)
                               ? net::choose_interface(net::interfaces_of_this_host(), environment).address
                               : first.substr(first.find('@') == first.npos ? 0 : first.find('@') + 1);
  return net::HostPort{host, 0}.to_string();
}

std::vector<std::string> travelling_variables(const RunOptions& options, const Environment& environment) {
  constexpr std::string_view kPrefixes[] = {"LOCKSTEP_", "NCCL_", "GLOO_", "OMP_"};
  Environment chosen;
  for (const auto& [name, value] : environment.variables()) {
    const bool travels =
        std::ranges::any_of(kPrefixes, [&name = name](auto prefix) { return name.starts_with(prefix); });
    // The secret, and variables about this process's own place in a job, stay here.
    if (travels && !name.starts_with("LOCKSTEP_STORE") && name != "LOCKSTEP_LAUNCHER_PID" &&
        name != "LOCKSTEP_LAUNCHER_FD" && name != "LOCKSTEP_RUN_ID" && name != "LOCKSTEP_RESTART_COUNT") {
      chosen.set(name, value);
    }
  }
  for (const std::string& wish : options.exported) {
    const auto equals = wish.find('=');
    const std::string name = wish.substr(0, equals);
    const auto known = environment.variables().find(name);
    if (equals != std::string::npos) {
      chosen.set(name, wish.substr(equals + 1));
    } else if (known != environment.variables().end()) {
      chosen.set(name, known->second);
    } else {
      throw InvalidArgument(
          fmt::format("-x {}: the variable is not set here; set it, or give -x {}=VALUE", name, name));
    }
  }
  std::vector<std::string> result;
  for (const auto& [name, value] : chosen.variables()) result.push_back(name + "=" + value);
  return result;
}

std::vector<std::string> agent_command_on(const std::string& name, const RunOptions& options,
                                          const Environment& environment) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  if (options.rsh.empty() && is_this_host(name)) return {self, "agent"};
  std::vector<std::string> command;
  const std::string words = options.rsh.empty() ? "ssh -o BatchMode=yes" : options.rsh;
  for (const auto word : split(words, ' ')) {
    if (!word.empty()) command.emplace_back(word);
  }
  const auto shell = find_program(command.front(), environment);
  if (shell.path.empty() && options.rsh.empty()) {
    throw InvalidArgument(
        "-H: this host has no ssh to start the other hosts' launchers; install it (Debian's openssh-client), or name "
        "another program with --rsh");
  }
  if (shell.path.empty()) throw InvalidArgument(fmt::format("--rsh: {}", shell.problem));
  command.front() = shell.path;
  command.insert(command.end(), {name, self, "agent"});
  return command;
}

std::unique_ptr<RemoteHost> start_agent(const std::string& name, const AgentStart& start, const RunOptions& options,
                                        const Environment& environment, const sigset_t& signal_mask) {
  std::vector<std::string> variables;
  for (const auto& [variable, value] : environment.variables()) {
    if (!variable.starts_with("LOCKSTEP_STORE_SECRET")) variables.push_back(variable + "=" + value);
  }
  auto host = std::make_unique<RemoteHost>(name, agent_command_on(name, options, environment), variables, signal_mask);
  host->send(encode(start));
  return host;
}

}  // namespace lockstep::launcher
