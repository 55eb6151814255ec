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

#include "launcher/doctor/host_trial.h"
#include "launcher/hosts/remote_agents.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/record.h"
#include "runtime/net/address.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher::doctor {
namespace {

constexpr std::size_t kMostLetters = 1000;  // of a text that another host wrote
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
    await([this](std::size_t node) { return hosts_[node].port != 0; }, Deadline::after(limit));
    for (std::size_t node = 0; node < hosts_.size(); ++node) send_peers(node);
    await([this](std::size_t node) { return hosts_[node].port == 0 || hosts_[node].is_done; }, Deadline::after(limit));
    auto findings =
        findings_of(hosts_, fmt::format("{:g} s (--probe-timeout)", std::chrono::duration<double>(limit).count()));
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
      process.move(console_, true,
                   [this, node](std::string_view line) { return line == kHereLine || read_trial(line, hosts_[node]); });
      if (process.ending() && !hosts_[node].is_done) hosts_[node].ending = process.ending()->describe();
    }
    console_.flush();
  }

  // The hosts that answered: each other one by its address, the first also by the store's name.
  void send_peers(std::size_t node) {
    std::vector<Peer> peers;
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      const TriedHost& host = hosts_[i];
      if (i == node || host.port == 0) continue;
      std::vector<std::string> addresses{host.address};
      if (const auto store = net::parse_host_port(endpoint_).host; i == 0 && store != host.address) {
        addresses.push_back(store);
      }
      for (const std::string& address : addresses) {
        if (address.empty()) continue;
        const net::HostPort where{address, static_cast<std::uint16_t>(host.port)};
        peers.push_back({static_cast<int>(i), host.name, where.to_string()});
      }
    }
    processes_[node]->send(fmt::format("{}{}\n", kPeersLine, escaped(write_records(peers, Peer::kFields))));
  }

  const DoctorOptions& options_;
  Console console_;
  std::string endpoint_;
  std::vector<TriedHost> hosts_;
  std::vector<std::unique_ptr<RemoteHost>> processes_;  // the remote shells of these hosts, in the same order
};

// Adds what the host itself could not say.
void add_silence(const TriedHost& host, const TriedHost& first, const std::string& limit, Findings& findings) {
  const auto add = [&](const std::string& value, const char* remedy) {
    findings.push_back({"hosts", host.name, value, Health::problem, remedy});
  };
  if (host.port == 0) {
    const std::string how = host.ending.empty() ? fmt::format("did not answer within {}", limit) : host.ending;
    return add(fmt::format("`{}` {}", host.command, how),
               "look at what this command wrote; let the remote shell in without a password, and install this lockstep "
               "on that host at the same path");
  }
  if (host.build != first.build) {
    add(fmt::format("this host has another lockstep than {}: '{}' and '{}'", first.name, host.build, first.build),
        "install the same build on both hosts");
  }
  if (!host.is_done) {
    add(host.ending.empty() ? fmt::format("did not try all others within {}", limit)
                            : "its lockstep " + host.ending + " before it had tried all others",
        "look at what this host's lockstep wrote, and try again");
  }
}

}  // namespace

bool read_trial(std::string_view line, TriedHost& host) {
  if (!line.starts_with(kTrialLine)) return false;
  auto answer = read_record<TrialAnswer>(unescaped(line.substr(kTrialLine.size())), TrialAnswer::kFields);
  if (!answer || (host.port == 0 && answer->port == 0)) return false;
  for (Finding& finding : answer->findings) {
    finding.name = host.name + finding.name;
    for (std::string* text : {&finding.section, &finding.name, &finding.value, &finding.remedy}) {
      *text = printable(*text, kMostLetters);
    }
    host.findings.push_back(std::move(finding));
  }
  host.is_done = host.port != 0;
  if (host.is_done) return true;
  host.build = printable(answer->build, kMostLetters);
  host.address = std::move(answer->address);
  host.port = answer->port;
  return true;
}

Findings findings_of(const std::vector<TriedHost>& hosts, const std::string& limit) {
  const auto first = std::ranges::find_if(hosts, [](const TriedHost& host) { return host.port != 0; });
  Findings findings;
  for (const TriedHost& host : hosts) {
    findings.insert(findings.end(), host.findings.begin(), host.findings.end());
    add_silence(host, first == hosts.end() ? host : *first, limit, findings);
  }
  std::ranges::stable_sort(findings, std::ranges::greater{}, &Finding::section);  // hosts, connections
  return findings;
}

Findings examine_hosts(const DoctorOptions& options, const Environment& environment) {
  return HostsExam(options, environment).run();
}

}  // namespace lockstep::launcher::doctor
