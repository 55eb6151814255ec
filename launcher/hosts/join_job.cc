// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/join_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "launcher/base/exit_codes.h"
#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/plugin.h"
#include "runtime/base/random_bytes.h"
#include "runtime/job/exit_code.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/route.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::launcher {
namespace {

// Delay before the first message about the wait for --rdzv-endpoint, in cases where waiting is usual.
constexpr std::chrono::seconds kQuietName{10};
// Limit for finding out whether a store is already served on another host.
constexpr std::chrono::seconds kStoreProbe{2};

StoreError not_reached(const std::string& why) {
  return StoreError(
      fmt::format("host {} does not reach the job's store: {}; start node rank 0, correct --rdzv-endpoint, open the "
                  "endpoint's port, or give a longer --rdzv-timeout if node rank 0 starts later",
                  host_name(), why));
}

}  // namespace

store::Secret secret_of(const RunOptions& options, const Environment& environment) {
  if (auto secret = store::Secret::of_environment(environment)) return *secret;
  throw InvalidArgument(
      fmt::format("--nnodes {}: the hosts of a job meet at a store on the network, which needs a secret: draw one with "
                  "`(umask 077; openssl rand -hex 32 > lockstep.secret)`, copy the file to every host, and set "
                  "LOCKSTEP_STORE_SECRET_FILE to its path on each",
                  options.nodes));
}

HostFacts look_at_this_host(const RunOptions& options, const Environment& environment, const Guardian& guardian,
                            Preparation& preparation) {
  HostFacts facts{.node = options.node_rank.value_or(-1),
                  .name = host_name(),
                  .pid = getpid(),
                  .build = std::string(build_stamp()),
                  .least = options.least_nodes,
                  .nodes = options.nodes,
                  .trace = options.trace};
  try {
    preparation = prepare(options, environment, guardian);
    facts.ranks = preparation.count.ranks;
    facts.exit_code = preparation.program.exit_code;
    facts.problem = preparation.program.problem;
    net::wished_interface(net::interfaces_of_this_host(), environment);  // throws if a wish can't be met
  } catch (const InvalidArgument& error) {
    facts.exit_code = kExitUsage;
    facts.problem = error.what();
  }
  return facts;
}

std::unique_ptr<RunStores> serve_store(const RunOptions& options, Contract& contract, bool is_agent,
                                       const Deadline& deadline, const Say& say, WakingQueue<AgentNews>& news) {
  const net::HostPort& endpoint = options.endpoint;
  const bool only_here = net::is_localhost(endpoint.host) || net::is_loopback(endpoint) || endpoint.host == "0.0.0.0" ||
                         endpoint.host == "::";
  if (only_here && options.nodes > 1) {
    say(
        fmt::format("--rdzv-endpoint {} is this host for every host that looks it up: launchers of other hosts find no "
                    "store there; give a name or an address of node rank 0's host that they know",
                    endpoint.to_string()));
  }
  if (options.node_rank.value_or(0) != 0) return nullptr;
  contract.run_id = fmt::format("{}-{}", options.run_id.empty() ? "run" : options.run_id, random_hex(8));
  std::string problem;
  bool is_served = false;  // another host serves the store
  auto say_at = Deadline::after(kQuietName);
  const net::HostLookup found = net::await_own(is_agent ? "" : endpoint.host, deadline, [&](const auto& seen) {
    problem = seen.problem;
    if (seen.is_known && !options.node_rank) {
      try {
        net::tcp_connect_once(endpoint, deadline.sooner(kStoreProbe));
        is_served = true;
        return false;
      } catch (const Error& error) {
        problem = error.what();
      }
    }
    if (!seen.is_known || options.node_rank || say_at.expired()) {
      if (!say_at.is_never()) say(fmt::format("waiting for --rdzv-endpoint {}: {}", endpoint.to_string(), problem));
      say_at = Deadline::never();
    }
    return true;
  });
  if (!found.is_here) {
    if (found.is_name && !is_served) throw not_reached(fmt::format("{}, {}", problem, deadline.progress()));
    if (!options.node_rank) return nullptr;
    throw InvalidArgument(
        fmt::format("--node-rank 0 serves the job's store at --rdzv-endpoint {}, but {}; start node rank 0 on the host "
                    "that has this address, or give an address of this host",
                    endpoint.to_string(), found.problem));
  }
  // Torch's store has no secret to protect it, so it listens at one address, which the ranks of all hosts are told.
  if (options.torch_store && !only_here) {
    contract.master_addr = net::own_address(net::HostPort{contract.master_addr, 1}.to_string(), true,
                                            net::interfaces_of_this_host(), Environment::of_process());
  }
  try {
    return std::make_unique<RunStores>(
        options,
        RunStores::Place{.listen = {found.is_name && !only_here ? "" : endpoint.host, endpoint.port},
                         .run_id = options.run_id},
        contract, [&news](const membership::MemberNews& of) { put_news(news, of); });
  } catch (const SystemError& error) {
    if (error.error_number() != EADDRINUSE || options.node_rank) throw;
    return nullptr;  // a launcher of this job on the same host may already serve it
  }
}

std::unique_ptr<AgentLink> join_agents(const RunOptions& options, const Environment& environment,
                                       const Contract& contract, const AgentPart& part, const Deadline& deadline,
                                       Say say, Signals& signals, WakingQueue<AgentNews>& news) {
  try {
    return std::make_unique<AgentLink>(AgentLink::Options{.endpoint = {.address = options.endpoint,
                                                                       .secret = contract.store_secret,
                                                                       .run_id = options.run_id,
                                                                       .role = "launcher of host " + host_name()},
                                                          .least = options.least_nodes,
                                                          .most = options.nodes,
                                                          .takes_spares = options.takes_spares(),
                                                          .can_replace = part.can_replace,
                                                          .requeue_exit_code = requeue_exit_code(environment),
                                                          .serves = part.serves,
                                                          .silence = membership::silence_limit(environment),
                                                          .meet_timeout = options.rdzv_timeout,
                                                          .more_hosts = options.rdzv_wait,
                                                          .deadline = deadline,
                                                          .say = std::move(say),
                                                          .signals = &signals},
                                       news);
  } catch (const Timeout& error) {
    throw not_reached(error.what());
  } catch (const StoreError& error) {
    throw StoreError(fmt::format("host {} can't join the job: {}; look also at what the launcher of node rank 0 wrote",
                                 host_name(), error.what()));
  }
}

}  // namespace lockstep::launcher
