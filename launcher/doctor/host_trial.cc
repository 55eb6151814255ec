// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/host_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "launcher/base/exit_codes.h"
#include "launcher/base/system.h"
#include "launcher/doctor/finding.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/plugin.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/base/record.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/route.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::launcher::doctor {
namespace {

constexpr const char* kHosts = "hosts";
constexpr const char* kConnections = "connections";
// Limit for connecting, and for each way of the bytes. A reachable host answers in milliseconds.
constexpr std::chrono::seconds kTrialLimit{3};
// More than one packet, to detect a path that passes only small ones.
constexpr std::size_t kBulk = std::size_t{64} << 10;
constexpr std::size_t kMostAtOnce = 32;
constexpr std::size_t kMostPeersBytes = std::size_t{1} << 20;  // about 250 bytes for each of kMostNodes

void say(const TrialAnswer& answer) {
  print_error(std::string(kTrialLine) + escaped(write_record(answer, TrialAnswer::kFields)));
}

// A run of its own for each host's store, so that a host which has another's address is found out.
std::string run_id_of(int node) { return fmt::format("doctor of node {}", node); }

Finding try_peer(const Peer& peer, const store::Secret& secret) {
  Finding finding{kConnections, " to " + peer.name, peer.address};
  const auto fail = [&](const Error& error, const char* remedy) {
    finding.value += fmt::format(": {}", error.what());
    finding.health = Health::problem;
    finding.remedy = remedy;
  };
  bool is_connected = false;
  try {
    store::TcpStore store({.address = net::parse_host_port(peer.address),
                           .secret = secret,
                           .run_id = run_id_of(peer.node),
                           .role = "doctor"},
                          Deadline::after(kTrialLimit), {.request_timeout = kTrialLimit});
    is_connected = true;
    store.set("bulk", std::string(kBulk, '.'));
    store.get("bulk", Deadline::after(kTrialLimit));
  } catch (const StoreError& error) {
    fail(error, is_connected ? "small packets get through, and large ones don't: compare the MTU of the interfaces and "
                               "of the network between the hosts (ip link; ping -M do -s 1472)"
                             : "two hosts may have this address, such as that of a bridge of containers: name an "
                               "interface in NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME");
  } catch (const Error& error) {
    fail(error,
         "let the hosts reach each other at this address: let LOCKSTEP_PORT_RANGE through the firewall, or name "
         "another interface in NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME");
  }
  return finding;
}

// Tries all peers in parallel. Returns how many were reached, then the problems.
Findings try_all(const std::vector<Peer>& peers, const store::Secret& secret) {
  Findings results(peers.size());
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::min(kMostAtOnce, peers.size()); ++i) {
    threads.push_back(start_quiet_thread([&] {
      for (std::size_t at = next++; at < peers.size(); at = next++) results[at] = try_peer(peers[at], secret);
    }));
  }
  for (std::thread& thread : threads) thread.join();
  const auto reached = std::erase_if(results, [](const Finding& result) { return result.health == Health::ok; });
  results.insert(results.begin(),
                 {kConnections, " to the others", fmt::format("{} of {} reached", reached, peers.size())});
  return results;
}

// Chooses the address in the same way as a rank's backends do.
net::InterfaceChoice choose_address(const std::string& endpoint) {
  const auto environment = Environment::of_process();
  const auto interfaces = net::interfaces_of_this_host();
  if (auto wished = net::wished_interface(interfaces, environment)) {
    wished->why = wished->name + ": " + wished->why;
    return *wished;
  }
  const std::string host = net::parse_host_port(endpoint).host;
  const std::string first = net::HostPort{host, kRendezvousPort}.to_string();
  return {
      .name = "", .address = net::own_address(first, true, interfaces, environment), .why = "by the way to " + host};
}

TrialAnswer look_around(const AgentInput& input) {
  TrialAnswer answer{.build = std::string(build_stamp())};
  const auto add_problem = [&](const std::string& problem) {
    answer.findings.push_back(problem_of(kHosts, "", problem, "see docs/RUN.md"));
  };
  try {
    const auto choice = choose_address(input.start().endpoint);
    answer.address = choice.address;
    answer.findings.push_back({kHosts, "", fmt::format("{}, {} ({})", host_name(), choice.address, choice.why)});
  } catch (const Error& error) {
    add_problem(error.what());
  }
  if (!input.problem.empty()) add_problem(input.problem);
  return answer;
}

}  // namespace

int run_host_trial(AgentInput& input) {
  const store::TcpStoreServer server(
      {.listen = {"", 0}, .secret = input.secret(), .run_id = run_id_of(input.start().node_rank)});
  TrialAnswer host = look_around(input);
  host.port = server.address().port;
  say(host);
  const std::string line = input.read_line(kMostPeersBytes);
  if (!line.starts_with(kPeersLine)) return kExitInternal;  // the process that asked has ended
  const auto peers = require_records<Peer>(unescaped(line.substr(kPeersLine.size())), Peer::kFields, "the peers");
  say({.findings = try_all(peers, input.secret())});
  // The other hosts may not have connected yet.
  while (!input.read_line().empty()) {
  }
  return 0;
}

}  // namespace lockstep::launcher::doctor
