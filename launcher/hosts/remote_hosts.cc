// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/remote_hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "launcher/hosts/agent_start.h"
#include "launcher/hosts/host_list.h"
#include "launcher/hosts/remote_host.h"
#include "launcher/run/find_program.h"
#include "launcher/signals.h"
#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/io.h"
#include "runtime/base/text.h"
#include "runtime/net/interfaces.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher {
namespace {

// After a launcher has failed the job's verdict ends the others, which may be saving; then their input ends.
constexpr std::chrono::seconds kOthersEnd{40};

std::vector<HostEntry> hosts_of(const RunOptions& options) {
  std::vector<HostEntry> hosts = options.hosts;
  if (!options.hostfile.empty()) {
    std::ifstream file(options.hostfile, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file) throw InvalidArgument(fmt::format("--hostfile {}: it can't be read", options.hostfile));
    hosts = parse_hostfile(text, options.hostfile);
  }
  if (hosts.size() > static_cast<std::size_t>(kMaxNodes)) {
    throw InvalidArgument(fmt::format("{} hosts are named; a job has at most {}", hosts.size(), kMaxNodes));
  }
  return options.ranks ? first_slots(hosts, *options.ranks) : hosts;
}

bool is_this_host(const std::string& name) {
  return name == "localhost" || name == "127.0.0.1" || name == "::1" || name == host_name();
}

// Where the others find the first host.
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

// What travels: lockstep's own variables and those of the libraries below it, and what -x names.
std::vector<std::string> travelling_variables(const RunOptions& options, const Environment& environment) {
  constexpr std::string_view kPrefixes[] = {"LOCKSTEP_", "NCCL_", "GLOO_", "OMP_"};
  Environment chosen;
  for (const auto& [name, value] : environment.variables()) {
    const bool travels = std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                                     [&name = name](auto prefix) { return name.starts_with(prefix); });
    // Of this process's own place in some job, and the secret, nothing.
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
      throw InvalidArgument(fmt::format("-x {}: it is not set here; set it, or give -x {}=VALUE", name, name));
    }
  }
  std::vector<std::string> result;
  for (const auto& [name, value] : chosen.variables()) result.push_back(name + "=" + value);
  return result;
}

class RemoteHosts {
 public:
  RemoteHosts(const RunOptions& options, const Environment& environment)
      : options_(options),
        environment_(environment),
        entries_(hosts_of(options)),
        console_(STDOUT_FILENO, STDERR_FILENO) {
    endpoint_ = endpoint_of(options, entries_, environment);
    start_all();
  }

  int run() {
    while (std::any_of(hosts_.begin(), hosts_.end(), [](const auto& host) { return host->running(); })) step();
    console_.finish();
    while (console_.backlog() > 0) step();
    return exit_code();
  }

 private:
  void start_all();
  std::vector<std::string> command_for(const std::string& name) const;
  void step();
  void look_at_ends();
  void on_signals();
  bool on_line(std::size_t node, std::string_view line);
  int exit_code() const;

  const RunOptions& options_;
  const Environment& environment_;
  const std::vector<HostEntry> entries_;
  Console console_;
  Signals signals_;
  std::string endpoint_;
  std::vector<std::unique_ptr<RemoteHost>> hosts_;  // by node rank
  std::vector<bool> has_come_;                      // the launcher there has said so
  bool has_failed_ = false;                         // a launcher did not come
  std::optional<Deadline> end_at_;                  // of every launcher's input
};

void RemoteHosts::start_all() {
  const auto secret = store::Secret::of_environment(environment_).value_or(store::Secret::random());
  AgentStart start{.secret = secret.hex(),
                   .folder = std::filesystem::current_path().string(),
                   .arguments = options_.arguments,
                   .variables = travelling_variables(options_, environment_),
                   .nodes = static_cast<int>(entries_.size()),
                   .endpoint = endpoint_};
  std::vector<std::string> environment;
  for (const auto& [name, value] : environment_.variables()) {
    if (!name.starts_with("LOCKSTEP_STORE_SECRET")) environment.push_back(name + "=" + value);
  }
  for (const HostEntry& entry : entries_) {
    start.node_rank = static_cast<int>(hosts_.size());
    start.nproc_per_node = entry.slots ? fmt::format("{}", *entry.slots) : options_.nproc_per_node;
    hosts_.push_back(
        std::make_unique<RemoteHost>(entry.name, command_for(entry.name), environment, signals_.original_mask()));
    hosts_.back()->send(encode(start));
  }
  has_come_.resize(hosts_.size());
}

std::vector<std::string> RemoteHosts::command_for(const std::string& name) const {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  if (options_.rsh.empty() && is_this_host(name)) return {self, "agent"};
  std::vector<std::string> command;
  const std::string words = options_.rsh.empty() ? "ssh -o BatchMode=yes" : options_.rsh;
  for (const auto word : split(words, ' ')) {
    if (!word.empty()) command.emplace_back(word);
  }
  const auto shell = find_program(command.front(), environment_);
  if (shell.path.empty()) throw InvalidArgument(fmt::format("--rsh: {}", shell.problem));
  command.front() = shell.path;
  command.insert(command.end(), {name, self, "agent"});
  return command;
}

void RemoteHosts::step() {
  const bool reads = console_.backlog() < Console::kBacklogLimit;
  std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}};
  for (const auto stream : {Stream::out, Stream::err}) {
    if (console_.waiting(stream)) entries.push_back({console_.fd(stream), POLLOUT, 0});
  }
  for (const auto& host : hosts_) host->add_to(entries, reads);
  const auto deadline = end_at_.value_or(Deadline::never());
  if (poll(entries.data(), entries.size(), deadline.poll_timeout_ms()) < 0 && errno != EINTR) {
    throw SystemError("poll", errno);
  }
  on_signals();
  for (std::size_t node = 0; node < hosts_.size(); ++node) {
    hosts_[node]->move(console_, reads, [this, node](std::string_view line) { return on_line(node, line); });
  }
  console_.flush();
  look_at_ends();
}

void RemoteHosts::on_signals() {
  for (const int signal : signals_.take()) {
    if (signal == SIGCHLD) continue;
    if (signal == SIGTSTP) {
      raise(SIGSTOP);
      continue;
    }
    for (const auto& host : hosts_) host->send(fmt::format("{}{}\n", kSignalLine, signal));
  }
}

bool RemoteHosts::on_line(std::size_t node, std::string_view line) {
  if (line == kHereLine) {
    has_come_[node] = true;
    return true;
  }
  if (node != 0 || !line.starts_with(kServesLine)) return false;
  const auto address = net::parse_host_port(endpoint_);
  const auto port = parse_int(line.substr(kServesLine.size()));
  if (!port) return false;
  const net::HostPort serves{address.host, static_cast<std::uint16_t>(*port)};
  for (const auto& host : hosts_) host->send(fmt::format("{}{}\n", kEndpointLine, serves.to_string()));
  return true;
}

void RemoteHosts::look_at_ends() {
  for (std::size_t node = 0; node < hosts_.size(); ++node) {
    const auto& ending = hosts_[node]->ending();
    if (!ending || hosts_[node]->running()) continue;
    if (!has_come_[node] && !has_failed_) {
      has_failed_ = true;
      console_.message(fmt::format(
          "host {} (node rank {}): its launcher did not start: `{}` {}; see what it wrote, and that the same "
          "lockstep is installed there",
          hosts_[node]->name(), node, fmt::join(command_for(hosts_[node]->name()), " "), ending->describe()));
      end_at_ = Deadline::after(std::chrono::seconds(0));
    } else if (!ending->ok() && !end_at_) {
      end_at_ = Deadline::after(kOthersEnd);
    }
  }
  if (!end_at_ || !end_at_->expired()) return;
  end_at_ = Deadline::never();
  for (const auto& host : hosts_) host->close_input();
}

int RemoteHosts::exit_code() const {
  if (has_failed_) return kExitInternal;
  const int code = hosts_.front()->ending()->exit_code();
  return code == 0 && console_.lost_output() ? kExitInternal : code;
}

}  // namespace

int start_remote_hosts(const RunOptions& options, const Environment& environment) {
  return RemoteHosts(options, environment).run();
}

}  // namespace lockstep::launcher
