// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/remote_hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <utility>

#include "launcher/base/exit_codes.h"
#include "launcher/base/signals.h"
#include "launcher/hosts/agent_input.h"
#include "launcher/hosts/remote_agents.h"
#include "lockstep/base/error.h"
#include "runtime/net/address.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher {
namespace {

// Time for the other launchers after one has failed: the job's verdict ends them, and their ranks may be saving. Then
// their inputs end.
constexpr std::chrono::seconds kOthersEnd{40};
// Delay before the first message that names the missing launchers.
constexpr std::chrono::seconds kQuietShells{10};
// Time for the remote shells after the first host's launcher has ended: by then none of the job's processes runs on any
// host that can be reached. A remote shell whose connection is dead would wait for hours.
constexpr std::chrono::seconds kShellsEnd{5};

class RemoteHosts {
 public:
  RemoteHosts(const RunOptions& options, const Environment& environment)
      : options_(options),
        environment_(environment),
        entries_(named_hosts(options)),
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
  void step();
  void look_at_ends();
  // Names the hosts whose launchers have not started: a first time after a while, and a last time at the deadline.
  void look_for_silent();
  // Sets the time limits of the remaining shells, from now on.
  void end_after_first_host();
  void kill_shells();
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
  std::vector<bool> has_come_;                      // the launcher on the host has reported its start
  const Deadline come_by_ = Deadline::after(options_.rdzv_timeout);
  Deadline say_at_ = Deadline::after(kQuietShells);
  bool has_failed_ = false;          // a launcher did not start
  bool is_over_ = false;             // the first host's launcher has ended
  std::optional<Deadline> end_at_;   // when every launcher's input ends
  std::optional<Deadline> kill_at_;  // when the remote shells are killed, after end_at_
};

void RemoteHosts::start_all() {
  const auto secret = store::Secret::of_environment(environment_).value_or(store::Secret::random());
  AgentStart start{.secret = secret.hex(),
                   .folder = folder_of_ranks(),
                   .arguments = options_.arguments,
                   .variables = travelling_variables(options_, environment_),
                   .nodes = static_cast<int>(entries_.size()),
                   .endpoint = endpoint_};
  for (const HostEntry& entry : entries_) {
    start.node_rank = static_cast<int>(hosts_.size());
    start.nproc_per_node = entry.slots ? fmt::format("{}", *entry.slots) : options_.nproc_per_node;
    hosts_.push_back(start_agent(entry.name, start, options_, environment_, signals_.original_mask()));
  }
  has_come_.resize(hosts_.size());
}

void RemoteHosts::step() {
  const bool reads = console_.backlog() < Console::kBacklogLimit;
  std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}};
  for (const auto stream : {Stream::out, Stream::err}) {
    if (console_.waiting(stream)) entries.push_back({console_.fd(stream), POLLOUT, 0});
  }
  for (const auto& host : hosts_) host->add_to(entries, reads);
  const bool all_came = std::find(has_come_.begin(), has_come_.end(), false) == has_come_.end();
  const auto silence = all_came ? Deadline::never() : come_by_.sooner(say_at_.remaining());
  const auto deadline = kill_at_.value_or(end_at_.value_or(silence));
  if (poll(entries.data(), entries.size(), deadline.poll_timeout_ms()) < 0 && errno != EINTR) {
    throw SystemError("poll", errno);
  }
  on_signals();
  bool has_read = false;
  for (std::size_t node = 0; node < hosts_.size(); ++node) {
    has_read |=
        hosts_[node]->move(console_, reads, [this, node](std::string_view line) { return on_line(node, line); });
  }
  console_.flush();
  // A shell that still sends, or waits for this program's reader, is not dead.
  if (is_over_ && (has_read || !reads)) end_after_first_host();
  look_at_ends();
  if (!all_came && !end_at_) look_for_silent();
}

void RemoteHosts::on_signals() {
  for (const int signal : signals_.take()) {
    if (signal == SIGCHLD) continue;
    if (signal == SIGTSTP) {
      raise(SIGSTOP);
      continue;
    }
    for (std::size_t node = 0; node < hosts_.size(); ++node) {
      hosts_[node]->send(fmt::format("{}{}\n", kSignalLine, signal));
      // A host whose launcher has not started has no reader for the signal.
      if (asks_to_end(signal) && !has_come_[node]) hosts_[node]->kill();
    }
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
          "host {} (node rank {}): its launcher did not start: `{}` {}; look at what this command wrote, and see that "
          "the same lockstep is installed on that host",
          hosts_[node]->name(), node, fmt::join(agent_command_on(hosts_[node]->name(), options_, environment_), " "),
          ending->describe()));
      end_at_ = Deadline::after(std::chrono::seconds(0));
    } else if (node == 0 && !std::exchange(is_over_, true)) {
      end_after_first_host();
    } else if (!ending->ok() && !end_at_) {
      end_at_ = Deadline::after(kOthersEnd);
    }
  }
  if (end_at_ && end_at_->expired() && !kill_at_) {
    kill_at_ = Deadline::after((is_over_ ? kShellsEnd : kOthersEnd) + options_.grace);
    for (std::size_t node = 0; node < hosts_.size(); ++node) {
      hosts_[node]->close_input();
      if (!has_come_[node]) hosts_[node]->kill();  // no rank runs there that could be saving
    }
  }
  if (kill_at_ && kill_at_->expired()) kill_shells();
}

void RemoteHosts::look_for_silent() {
  const bool is_late = come_by_.expired();
  if (!is_late && !say_at_.expired()) return;
  say_at_ = Deadline::never();
  std::vector<std::string> silent;
  for (std::size_t node = 0; node < hosts_.size(); ++node) {
    if (!has_come_[node]) silent.push_back(fmt::format("host {} (node rank {})", hosts_[node]->name(), node));
  }
  if (silent.empty()) return;
  console_.message(fmt::format(
      "no launcher has come up yet on {}, {} (--rdzv-timeout){}", fmt::join(silent, ", "), come_by_.progress(),
      is_late ? ": the remote shell neither ended nor started a launcher; try the remote shell by hand" : ""));
  if (!is_late) return;
  has_failed_ = true;
  end_at_ = Deadline::after(std::chrono::seconds(0));
}

void RemoteHosts::end_after_first_host() {
  if (kill_at_ && kill_at_->is_never()) return;  // they have been killed
  (kill_at_ ? kill_at_ : end_at_) = Deadline::after(kShellsEnd + options_.grace);
}

void RemoteHosts::kill_shells() {
  kill_at_ = Deadline::never();
  for (std::size_t node = 0; node < hosts_.size(); ++node) {
    if (!hosts_[node]->running()) continue;
    console_.message(
        fmt::format("host {} (node rank {}): the remote shell does not end, and is killed; if the network to that host "
                    "has failed, see on that host whether the launcher has ended its ranks",
                    hosts_[node]->name(), node));
    hosts_[node]->kill();
  }
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
