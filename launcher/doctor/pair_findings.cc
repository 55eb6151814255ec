// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/pair_findings.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/net/address.h"

namespace lockstep::launcher::doctor {
namespace {

using Outcome = TrialResult::Outcome;

constexpr const char* kHosts = "hosts";
constexpr const char* kConnections = "connections";

std::string remedy_for(Outcome outcome) {
  switch (outcome) {
    case Outcome::reached: return {};
    case Outcome::unreached:
      return "let the hosts reach each other there: a firewall has to let LOCKSTEP_PORT_RANGE through; another "
             "interface is named by NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME";
    case Outcome::cut:
      return "small packets get through, and large ones don't: compare the MTU of the interfaces and of what is "
             "between (ip link; ping -M do -s 1472)";
    case Outcome::stranger:
      return "two hosts may have this address, such as that of a bridge of containers: name an interface in "
             "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME";
  }
  return {};
}

void add_host(const TriedHost& host, const TrialHost* first, const std::string& limit, Findings& findings) {
  if (!host.facts) {
    const std::string how = host.ending.empty() ? fmt::format("did not answer within {}", limit) : host.ending;
    findings.push_back({kHosts, host.name, fmt::format("`{}` {}", host.command, how), Health::problem,
                        "see what it wrote; let the remote shell in without a password, and have this lockstep "
                        "installed there at the same path"});
    return;
  }
  const TrialHost& facts = *host.facts;
  findings.push_back({kHosts, host.name,
                      fmt::format("{}, {} ({})", facts.name, facts.address.empty() ? "no address" : facts.address,
                                  facts.why.empty() ? "see below" : facts.why)});
  if (first != nullptr && facts.build != first->build) {
    findings.push_back(
        {kHosts, host.name,
         fmt::format("it has another lockstep than {}: '{}' and '{}'", first->name, facts.build, first->build),
         Health::problem, "install the same build on both"});
  }
  for (const std::string& problem : facts.problems) {
    findings.push_back(problem_of(kHosts, host.name, problem, "see docs/RUN.md"));
  }
  if (!host.is_done) {
    findings.push_back({kHosts, host.name,
                        host.ending.empty() ? fmt::format("did not try all others within {}", limit)
                                            : "its lockstep " + host.ending + " before it had tried all others",
                        Health::problem, "see what it wrote; try again"});
  }
}

void add_connections(const std::vector<TriedHost>& hosts, const TriedHost& from, Findings& findings) {
  int reached = 0;
  const TrialResult* slowest = nullptr;
  Findings problems;
  for (const TrialResult& result : from.results) {
    if (result.node < 0 || result.node >= static_cast<int>(hosts.size())) continue;
    const std::string& to = hosts[static_cast<std::size_t>(result.node)].name;
    if (result.outcome == Outcome::reached) {
      ++reached;
      if (slowest == nullptr || result.seconds > slowest->seconds) slowest = &result;
      continue;
    }
    problems.push_back(
        {kConnections, fmt::format("{} to {}", from.name, to),
         fmt::format("{}{}: {}", result.address, result.from.empty() ? "" : " from " + result.from, result.problem),
         Health::problem, remedy_for(result.outcome)});
  }
  if (slowest != nullptr) {
    findings.push_back(
        {kConnections, from.name + " to the others",
         fmt::format("{} of {} tried, the slowest {:.1f} ms ({} at {})", reached, from.results.size(),
                     1000 * slowest->seconds, hosts[static_cast<std::size_t>(slowest->node)].name, slowest->address)});
  }
  findings.insert(findings.end(), problems.begin(), problems.end());
}

}  // namespace

std::vector<TrialPeer> peers_of(const std::vector<TriedHost>& hosts, int node, const std::string& endpoint) {
  std::vector<TrialPeer> peers;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (static_cast<int>(i) == node || !hosts[i].facts) continue;
    const TrialHost& facts = *hosts[i].facts;
    const auto add = [&](const std::string& address) {
      const net::HostPort where{address, static_cast<std::uint16_t>(facts.port)};
      peers.push_back({.node = static_cast<int>(i), .address = where.to_string(), .token = facts.token});
    };
    if (!facts.address.empty()) add(facts.address);
    const std::string store = net::parse_host_port(endpoint).host;
    if (i == 0 && store != facts.address) add(store);
  }
  return peers;
}

Findings pair_findings(const std::vector<TriedHost>& hosts, const std::string& limit) {
  const auto told = std::ranges::find_if(hosts, [](const TriedHost& host) { return host.facts.has_value(); });
  Findings findings;
  for (const TriedHost& host : hosts) add_host(host, told == hosts.end() ? nullptr : &*told->facts, limit, findings);
  for (const TriedHost& host : hosts) add_connections(hosts, host, findings);
  return findings;
}

}  // namespace lockstep::launcher::doctor
