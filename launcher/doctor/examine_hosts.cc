// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/examine_hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <functional>
#include <memory>

#include "launcher/doctor/pair_findings.h"
#include "launcher/hosts/remote_agents.h"
#include "lockstep/base/error.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher::doctor {
namespace {

// Time for the trials to end after their inputs have ended.
constexpr std::chrono::seconds kTrialsEnd{5};

class HostsExam {
 public:
  HostsExam(const DoctorOptions& options, const Environment& environment)
      : options_(options), console_(STDERR_FILENO, STDERR_FILENO) {
    const auto entries = named_hosts(options.run);
    endpoint_ = endpoint_of(options.run, entries, environment);
    AgentStart start{.secret = store::Secret::random().hex(),
                     .folder = folder_of_ranks(),
                     .arguments = {"doctor"},
                     .variables = travelling_variables(options.run, environment),
                     .nodes = static_cast<int>(entries.size()),
                     .nproc_per_node = "1",
                     .endpoint = endpoint_};
    if (!options.program.empty()) start.arguments.insert(start.arguments.end(), {"--program", options.program});
    sigset_t mask;
    sigprocmask(SIG_BLOCK, nullptr, &mask);
    for (const HostEntry& entry : entries) {
      start.node_rank = static_cast<int>(hosts_.size());
      hosts_.push_back(
          {.name = entry.name,
           .command = fmt::format("{}", fmt::join(agent_command_on(entry.name, options.run, environment), " "))});
      processes_.push_back(start_agent(entry.name, start, options.run, environment, mask));
    }
  }

  Findings run() {
    const auto limit = options_.probe_timeout;
    await([this](std::size_t node) { return hosts_[node].facts.has_value(); }, Deadline::after(limit));
    for (std::size_t node = 0; node < hosts_.size(); ++node) send_peers(static_cast<int>(node));
    await([this](std::size_t node) { return !hosts_[node].facts || hosts_[node].is_done; }, Deadline::after(limit));
    auto findings =
        pair_findings(hosts_, fmt::format("{:g} s (--probe-timeout)", std::chrono::duration<double>(limit).count()));
    for (const auto& process : processes_) process->close_input();
    await([](std::size_t) { return false; }, Deadline::after(kTrialsEnd));
    return findings;
  }

 private:
  // Waits until each host's process has ended, or the host `is_settled`.
  void await(const std::function<bool(std::size_t node)>& is_settled, const Deadline& deadline) {
    const auto is_open = [&](std::size_t node) { return processes_[node]->running() && !is_settled(node); };
    while (!deadline.expired()) {
      bool waits = false;
      for (std::size_t node = 0; node < hosts_.size(); ++node) waits = waits || is_open(node);
      if (!waits) return;
      step(deadline);
    }
  }

  void step(const Deadline& deadline) {
    std::vector<pollfd> entries;
    for (const auto& process : processes_) process->add_to(entries, true);
    if (poll(entries.data(), entries.size(), deadline.poll_timeout_ms()) < 0 && errno != EINTR) {
      throw SystemError("poll", errno);
    }
    for (std::size_t node = 0; node < processes_.size(); ++node) {
      RemoteHost& process = *processes_[node];
      process.move(console_, true, [this, node](std::string_view line) { return on_line(hosts_[node], line); });
      if (process.ending() && !hosts_[node].is_done) hosts_[node].ending = process.ending()->describe();
    }
    console_.flush();
  }

  // Returns true if the line is a message of the trial to this process, not for people.
  static bool on_line(TriedHost& host, std::string_view line) {
    if (line == kHereLine) return true;
    if (line == kDoneLine) return host.is_done = true;
    if (line.starts_with(kHostLine)) {
      host.facts = decode_trial_host(line.substr(kHostLine.size()));
      return host.facts.has_value();
    }
    if (!line.starts_with(kResultLine)) return false;
    const auto result = decode_trial_result(line.substr(kResultLine.size()));
    if (result) host.results.push_back(*result);
    return result.has_value();
  }

  void send_peers(int node) {
    RemoteHost& process = *processes_[static_cast<std::size_t>(node)];
    for (const TrialPeer& peer : peers_of(hosts_, node, endpoint_)) {
      process.send(fmt::format("{}{}\n", kPeerLine, encode(peer)));
    }
    process.send(fmt::format("{}\n", kTryLine));
  }

  const DoctorOptions& options_;
  Console console_;
  std::string endpoint_;
  std::vector<TriedHost> hosts_;
  std::vector<std::unique_ptr<RemoteHost>> processes_;  // the remote shells of these hosts, in the same order
};

}  // namespace

Findings examine_hosts(const DoctorOptions& options, const Environment& environment) {
  return HostsExam(options, environment).run();
}

}  // namespace lockstep::launcher::doctor
