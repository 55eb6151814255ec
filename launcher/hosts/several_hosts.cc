// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/several_hosts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <numeric>

#include "launcher/hosts/agent_control.h"
#include "launcher/hosts/agent_start.h"
#include "launcher/hosts/agents.h"
#include "launcher/run/host_parts.h"
#include "launcher/run/job_report.h"
#include "launcher/run/run_stores.h"
#include "launcher/system.h"
#include "lockstep/base/error.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/exit_code.h"
#include "runtime/base/host.h"
#include "runtime/base/plugin.h"
#include "runtime/base/random_bytes.h"
#include "runtime/net/interfaces.h"

namespace lockstep::launcher {
namespace {

// How long node rank 0 waits for the others' connections to end, before it ends the store.
constexpr std::chrono::seconds kOthersLeave{5};

store::Secret secret_of(const RunOptions& options, const Environment& environment) {
  if (auto secret = store::Secret::of_environment(environment)) return *secret;
  throw InvalidArgument(
      fmt::format("--nnodes {}: the hosts of a job meet at a store on the network, which needs a secret: draw one with "
                  "`(umask 077; openssl rand -hex 32 > lockstep.secret)`, copy the file to every host, and set "
                  "LOCKSTEP_STORE_SECRET_FILE to its path on each",
                  options.nodes));
}

// What keeps ranks from starting here is for all hosts to know.
HostFacts look_at_this_host(const RunOptions& options, const Environment& environment, Preparation& preparation) {
  HostFacts facts{.name = host_name(), .pid = getpid(), .build = std::string(build_stamp()), .nodes = options.nodes};
  try {
    preparation = prepare(options, environment);
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

// Serves the job's store if that is for this host to do; nothing if not.
// `everywhere`: at every address of this host, since its name may mean loopback on the host itself.
std::unique_ptr<RunStores> serve_store(const RunOptions& options, Contract& contract, bool everywhere,
                                       WakingQueue<AgentNews>& news) {
  if (options.node_rank.value_or(0) != 0) return nullptr;
  contract.run_id = fmt::format("{}-{}", options.run_id.empty() ? "run" : options.run_id, random_hex(8));
  try {
    return std::make_unique<RunStores>(
        options,
        RunStores::Place{.listen = {everywhere ? "" : options.endpoint.host, options.endpoint.port},
                         .run_id = options.run_id},
        contract, [&news](const membership::MemberNews& of) { news.put(of); });
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
                                    bool serves, WakingQueue<AgentNews>& news) {
  const auto deadline = Deadline::after(options.rdzv_timeout);
  try {
    return std::make_unique<Agents>(
        Agents::Options{.endpoint = {.address = options.endpoint,
                                     .secret = contract.store_secret,
                                     .run_id = options.run_id,
                                     .role = "launcher of host " + host_name()},
                        .nodes = options.nodes,
                        .node_rank = options.node_rank,
                        .serves = serves,
                        .detect_silence = options.liveness.value_or(environment.get("LOCKSTEP_LIVENESS") != "off"),
                        .deadline = deadline},
        news);
  } catch (const Timeout& error) {
    throw Error(
        fmt::format("host {} does not reach the job's store: {}; start node rank 0, correct --rdzv-endpoint, "
                    "open its port, or give --rdzv-timeout if it starts later",
                    host_name(), error.what()));
  } catch (const StoreError& error) {
    throw Error(fmt::format("host {} can't join the job: {}", host_name(), error.what()));
  }
}

std::string describe_start(const JobPlan& plan, int node_rank) {
  const HostShare& own = plan.hosts[static_cast<std::size_t>(node_rank)];
  std::vector<int> ranks(static_cast<std::size_t>(own.ranks));
  std::iota(ranks.begin(), ranks.end(), own.first_rank);
  return fmt::format("{} (node rank {} of {}): {} of {}", own.name, node_rank, plan.hosts.size(),
                     rendezvous::describe_ranks(ranks), world_size(plan.hosts));
}

MakeControl control_of(const RunOptions& options, const Environment& environment, const JobPlan& plan, bool speaks,
                       Agents& agents, WakingQueue<AgentNews>& news,
                       std::function<std::vector<membership::MemberView>()> members) {
  const int requeue = options.requeue_exit_code ? *options.requeue_exit_code : requeue_exit_code(environment);
  const auto stop_timeout = stop_timeout_of(options, environment);
  return [&options, &plan, &agents, &news, requeue, stop_timeout, speaks,
          members = std::move(members)](auto facts) -> std::unique_ptr<JobControl> {
    if (agents.node_rank() != 0) {
      return std::make_unique<OtherHost>(
          OtherHost::Options{
              .hosts = plan.hosts, .node_rank = agents.node_rank(), .requeue_exit_code = requeue, .speaks = speaks},
          agents, news);
    }
    // Of a rank on another host that has not ended nothing but its host is known here.
    const auto facts_of = [hosts = plan.hosts, facts](int rank) {
      if (hosts.front().has(rank)) return facts(rank);
      return RankFacts{.rank = rank, .host = hosts[static_cast<std::size_t>(node_of(hosts, rank))].name};
    };
    return std::make_unique<FirstHost>(JobVerdict::Options{.hosts = plan.hosts,
                                                           .grace = options.grace,
                                                           .requeue_exit_code = requeue,
                                                           .stop_timeout = stop_timeout,
                                                           .members = members,
                                                           .facts = facts_of},
                                       agents, news);
  };
}

}  // namespace

int start_several_hosts(RunOptions options, const Environment& environment, AgentInput* input) {
  JobOptions job_options{.keep_last_lines = true};
  Contract& contract = job_options.contract = contract_of(options);
  contract.store_secret = input != nullptr ? input->secret() : secret_of(options, environment);
  job_options.reads_input = input == nullptr;
  HostParts parts;
  if (input != nullptr) input->watch(stop_timeout_of(options, environment));
  WakingQueue<AgentNews> news;
  std::unique_ptr<RunStores> stores;
  std::unique_ptr<Agents> agents;
  Preparation preparation;
  JobPlan plan;
  {
    // No rank is there yet: a signal ends this process as any other.
    const SignalsLetThrough until_the_start(parts.signals);
    HostFacts facts = look_at_this_host(options, environment, preparation);
    if (input != nullptr && !input->problem.empty()) {
      facts.problem = input->problem;
      facts.exit_code = kExitUsage;
    }
    stores = serve_store(options, contract, input != nullptr, news);
    if (stores && options.endpoint.port == 0) options.endpoint.port = stores->address().port;
    if (stores && input != nullptr) print_error(fmt::format("{}{}", kServesLine, options.endpoint.port));
    agents = join_agents(options, environment, contract, stores != nullptr, news);
    plan = agents->meet(facts, {.run_id = contract.run_id,
                                .master_addr = contract.master_addr,
                                .master_port = contract.master_port,
                                .torch_store = contract.torch_store});
  }
  int code = plan.exit_code;
  const bool speaks = input == nullptr || agents->node_rank() == 0;
  for (const auto& problem : plan.problems) {
    if (speaks) parts.console.message(problem);
  }
  if (code == 0) {
    contract.hosts = plan.hosts;
    contract.node_rank = agents->node_rank();
    contract.run_id = plan.run_id;
    contract.store_address = options.endpoint.to_string();
    contract.master_addr = plan.master_addr;
    contract.master_port = plan.master_port;
    contract.torch_store = plan.torch_store;
    if (stores) {
      job_options.members = [&stores] { return stores->members(); };
      if (const auto open = stores->open_address(); !open.empty()) parts.console.message(torch_store_warning(open));
    }
    parts.console.message(describe_start(plan, agents->node_rank()));
    agents->start();
    const auto make_control = control_of(options, environment, plan, speaks, *agents, news, job_options.members);
    code = run_ranks(options, preparation, std::move(job_options), environment, parts, make_control);
  }
  agents.reset();
  if (stores) stores->wait_until_idle(Deadline::after(kOthersLeave));
  return code;
}

}  // namespace lockstep::launcher
