// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/join_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/plugin.h"
#include "runtime/base/random_bytes.h"
#include "runtime/net/interfaces.h"

namespace lockstep::launcher {

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
    if (environment.has("NCCL_SOCKET_IFNAME") || environment.has("GLOO_SOCKET_IFNAME")) {
      net::choose_interface(net::interfaces_of_this_host(), environment);
    }
  } catch (const InvalidArgument& error) {
    facts.exit_code = kExitUsage;
    facts.problem = error.what();
  }
  return facts;
}

std::unique_ptr<RunStores> serve_store(const RunOptions& options, Contract& contract, bool everywhere,
                                       WakingQueue<AgentNews>& news) {
  if (options.node_rank.value_or(0) != 0) return nullptr;
  contract.run_id = fmt::format("{}-{}", options.run_id.empty() ? "run" : options.run_id, random_hex(8));
  try {
    return std::make_unique<RunStores>(
        options,
        RunStores::Place{.listen = {everywhere ? "" : options.endpoint.host, options.endpoint.port},
                         .run_id = options.run_id},
        contract, [&news](const membership::MemberNews& of) { put_news(news, of); });
  } catch (const InvalidArgument& error) {
    if (!options.node_rank) return nullptr;  // the endpoint's address is another host's, which serves it
    throw InvalidArgument(fmt::format("--node-rank 0 serves the job's store at --rdzv-endpoint {}: {}",
                                      options.endpoint.to_string(), error.what()));
  } catch (const SystemError& error) {
    if (error.error_number() != EADDRINUSE || options.node_rank) throw;
    return nullptr;  // a launcher of this job beside this one may be there already
  }
}

std::unique_ptr<Agents> join_agents(const RunOptions& options, const Environment& environment, const Contract& contract,
                                    const AgentPart& part, const Deadline& deadline, Say say, Signals& signals,
                                    WakingQueue<AgentNews>& news) {
  Environment watched = environment;
  if (!options.liveness.empty()) watched.set("LOCKSTEP_LIVENESS", options.liveness);
  try {
    return std::make_unique<Agents>(Agents::Options{.endpoint = {.address = options.endpoint,
                                                                 .secret = contract.store_secret,
                                                                 .run_id = options.run_id,
                                                                 .role = "launcher of host " + host_name()},
                                                    .least = options.least_nodes,
                                                    .most = options.nodes,
                                                    .takes_spares = options.takes_spares(),
                                                    .can_replace = part.can_replace,
                                                    .requeue_exit_code = requeue_code_of(options, environment),
                                                    .serves = part.serves,
                                                    .silence = membership::silence_limit(watched),
                                                    .meet_timeout = options.rdzv_timeout,
                                                    .more_hosts = options.rdzv_wait,
                                                    .deadline = Deadline::after(options.rdzv_timeout),
                                                    .say = std::move(say),
                                                    .signals = &signals},
                                    news);
  } catch (const Timeout& error) {
    throw StoreError(
        fmt::format("host {} does not reach the job's store: {}; start node rank 0, correct --rdzv-endpoint, "
                    "open its port, or give --rdzv-timeout if it starts later",
                    host_name(), error.what()));
  } catch (const StoreError& error) {
    throw StoreError(fmt::format("host {} can't join the job: {}", host_name(), error.what()));
  }
}

}  // namespace lockstep::launcher
