// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/run_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "launcher/flag_values.h"
#include "launcher/run/gpu_choice.h"
#include "lockstep/base/error.h"
#include "runtime/base/exit_code.h"
#include "runtime/base/text.h"
#include "runtime/membership/membership_table.h"
#include "runtime/net/address.h"

namespace lockstep::launcher {
namespace {

bool is_torch_nproc_word(std::string_view text) { return text == "auto" || text == "cpu" || text == "gpu"; }

std::string ranks_problem(std::string_view flag, std::string_view text) {
  if (parse_count(text, kMaxRanks)) return {};
  if (flag == "-n" && text == "p") return "-np is a flag of mpirun; here it is -n";
  return fmt::format("{} {}: give a number of ranks from 1 to {}{}", flag, text, kMaxRanks,
                     flag == "-n" ? "" : ", or auto, cpu or gpu");
}

// "join_timeout=600,timeout=900,last_call_timeout=30": for all hosts the seconds of the first, else of the second.
std::string interpret_conf(const std::string& text, RunOptions& options) {
  std::optional<std::chrono::milliseconds> timeout;
  for (const std::string_view item : split(text, ',')) {
    const auto equals = item.find('=');
    const auto name = item.substr(0, equals);
    const auto seconds = equals == item.npos ? std::nullopt : parse_seconds(std::string(item.substr(equals + 1)));
    const bool is_wait = name == "last_call_timeout";
    if ((name != "join_timeout" && name != "timeout" && !is_wait) || !seconds || (seconds->count() == 0 && !is_wait)) {
      return fmt::format(
          "--rdzv-conf {}: '{}' is not read here; there are join_timeout=SECONDS, as --rdzv-timeout has it, and "
          "last_call_timeout=SECONDS, as --rdzv-wait",
          text, item);
    }
    if (is_wait) {
      options.rdzv_wait = *seconds;
    } else if (!timeout || name == "join_timeout") {
      timeout = seconds;
    }
  }
  if (timeout) options.rdzv_timeout = *timeout;
  return {};
}

// "9400", on loopback, or "0.0.0.0:9400".
std::string interpret_metrics(const std::string& text, RunOptions& options) {
  if (text.empty()) return {};
  if (const auto port = parse_int(text)) {
    if (*port < 0 || *port > 65535)
      return fmt::format("--metrics-port {}: give a port, or ADDRESS:PORT; ports are 0 to 65535", text);
    options.metrics = net::HostPort{"127.0.0.1", static_cast<std::uint16_t>(*port)};
    return {};
  }
  try {
    options.metrics = net::parse_host_port(text);
    return {};
  } catch (const InvalidArgument& error) {
    return fmt::format("--metrics-port {}: give a port, or ADDRESS:PORT to be reached from elsewhere ({})", text,
                       error.what());
  }
}

std::string interpret_nodes(const RawRunFlags& raw, RunOptions& options) {
  if (!raw.nnodes.empty()) {
    const auto colon = raw.nnodes.find(':');
    const auto nodes = parse_count(raw.nnodes.substr(0, colon), kMaxNodes);
    const auto most = colon == std::string::npos ? nodes : parse_count(raw.nnodes.substr(colon + 1), kMaxNodes);
    if (!nodes || !most || *most < *nodes) {
      return fmt::format("--nnodes {}: give a number of hosts from 1 to {}, or LEAST:MOST", raw.nnodes, kMaxNodes);
    }
    options.least_nodes = static_cast<int>(*nodes);
    options.nodes = static_cast<int>(*most);
  }
  if (!raw.node_rank.empty()) {
    const auto rank = parse_int(raw.node_rank);
    if (!rank || *rank < 0 || *rank >= options.nodes) {
      return fmt::format("--node-rank {}: give a number from 0 to {}, one less than --nnodes", raw.node_rank,
                         options.nodes - 1);
    }
    options.node_rank = static_cast<int>(*rank);
  }
  return {};
}

std::string interpret_rendezvous(const RawRunFlags& raw, RunOptions& options) {
  if (!raw.rdzv_backend.empty() && raw.rdzv_backend != "static" && raw.rdzv_backend != "c10d") {
    return fmt::format(
        "--rdzv-backend {}: there are static and c10d, which mean the same here: node rank 0 serves the "
        "job's store",
        raw.rdzv_backend);
  }
  if (!raw.rdzv_conf.empty()) {
    if (auto problem = interpret_conf(raw.rdzv_conf, options); !problem.empty()) return problem;
  }
  if (!raw.rdzv_timeout.empty()) {
    const auto seconds = parse_seconds(raw.rdzv_timeout);
    if (!seconds || seconds->count() == 0) {
      return fmt::format("--rdzv-timeout {}: give seconds above 0 and at most 86400", raw.rdzv_timeout);
    }
    options.rdzv_timeout = *seconds;
  }
  if (!raw.rdzv_wait.empty()) {
    const auto seconds = parse_seconds(raw.rdzv_wait);
    if (!seconds) return fmt::format("--rdzv-wait {}: give seconds from 0 to 86400", raw.rdzv_wait);
    if (!options.hosts_may_change()) {
      return fmt::format("--rdzv-wait {}: it is for --nnodes LEAST:MOST; all hosts are waited for", raw.rdzv_wait);
    }
    options.rdzv_wait = *seconds;
  }
  options.run_id = raw.rdzv_id;
  if (auto problem = interpret_hosts(raw, options); !problem.empty()) return problem;
  if (options.nodes == 1) return {};
  if (options.ranks) {
    return fmt::format("-n {}: with --nnodes {} each host says its own number of ranks: --nproc-per-node",
                       *options.ranks, options.nodes);
  }
  if (!raw.rdzv_endpoint.empty()) {
    try {
      options.endpoint = net::parse_host_port(raw.rdzv_endpoint, kRendezvousPort);
    } catch (const InvalidArgument& error) {
      return fmt::format("--rdzv-endpoint: {}", error.what());
    }
  } else if (!raw.master_addr.empty()) {
    options.endpoint = {options.master_addr,
                        options.master_port == 0 ? kRendezvousPort : static_cast<std::uint16_t>(options.master_port)};
    options.master_port = 0;  // the job's store is there
  }
  if (options.endpoint.host.empty() || options.endpoint.port == 0) {
    return fmt::format(
        "--nnodes {}: give --rdzv-endpoint HOST:PORT, the same on every host: an address of node rank 0's and a port "
        "that is free there",
        options.nodes);
  }
  if (raw.master_addr.empty()) options.master_addr = options.endpoint.host;
  return {};
}

std::string interpret_output(const RawRunFlags& raw, RunOptions& options) {
  if (!raw.tee.empty()) {
    const auto tee = Tee::parse(raw.tee);
    if (!tee) {
      return fmt::format(
          "--tee {}: give 1 for stdout, 2 for stderr, 3 for both or 0 for neither; --ranks chooses ranks", raw.tee);
    }
    if ((tee->out || tee->err) && options.log_dir.empty()) {
      return fmt::format("--tee {}: it shows here what goes to the files of --log-dir; give --log-dir DIR", raw.tee);
    }
    options.tee = *tee;
  }
  if (!raw.shown_ranks.empty()) {
    const auto ranks = RankSet::parse(raw.shown_ranks);
    if (!ranks) return fmt::format("--ranks {}: give ranks and ranges of them, such as 0,3 or 0-2,7", raw.shown_ranks);
    options.shown_ranks = *ranks;
    if (raw.tee.empty()) options.tee = {.out = true, .err = true};
  }
  if (!raw.bind.empty()) {
    const auto binding = parse_binding(raw.bind);
    if (!binding) return fmt::format("--bind {}: give core, numa or none", raw.bind);
    options.binding = *binding;
  }
  return {};
}

}  // namespace

std::string interpret_hosts(const RawRunFlags& raw, RunOptions& options) {
  if (raw.hosts.empty() && raw.hostfile.empty()) {
    if (!options.rsh.empty() || !options.exported.empty()) {
      return "--rsh and -x are for hosts that -H or --hostfile names; give one of these";
    }
    return {};
  }
  if (!raw.hosts.empty() && !raw.hostfile.empty()) return "-H and --hostfile both name the hosts; give one of them";
  if (!raw.nnodes.empty() || !raw.node_rank.empty()) {
    return "-H and --hostfile give the hosts their number and node ranks; leave out --nnodes and --node-rank";
  }
  for (const std::string& wish : options.exported) {
    if (wish.empty() || wish.front() == '=') return fmt::format("-x {}: give NAME or NAME=VALUE", wish);
  }
  try {
    if (!raw.hosts.empty()) options.hosts = parse_hosts(raw.hosts);
    if (!raw.rdzv_endpoint.empty()) options.endpoint = net::parse_host_port(raw.rdzv_endpoint, std::uint16_t{0});
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  options.hostfile = raw.hostfile;
  return {};
}

std::vector<std::string> take_variables(const Environment& environment, RawRunFlags& raw) {
  std::vector<std::string> taken;
  const auto take = [&](const char* name, std::string& flag) {
    if (!flag.empty() || !environment.has(name)) return;
    flag = *environment.get(name);
    taken.emplace_back(name);
  };
  take("LOCKSTEP_BACKEND", raw.backend);
  if (!raw.hosts.empty() || !raw.hostfile.empty()) return taken;  // PET_ is about a launcher on one of the hosts
  const std::pair<const char*, std::string*> variables[] = {{"PET_NNODES", &raw.nnodes},
                                                            {"PET_NODE_RANK", &raw.node_rank},
                                                            {"PET_MASTER_ADDR", &raw.master_addr},
                                                            {"PET_MASTER_PORT", &raw.master_port},
                                                            {"PET_RDZV_ID", &raw.rdzv_id},
                                                            {"PET_RDZV_ENDPOINT", &raw.rdzv_endpoint},
                                                            {"PET_RDZV_CONF", &raw.rdzv_conf},
                                                            {"PET_RDZV_BACKEND", &raw.rdzv_backend},
                                                            {"PET_MAX_RESTARTS", &raw.max_restarts}};
  for (const auto& [name, flag] : variables) take(name, *flag);
  if (raw.ranks.empty()) take("PET_NPROC_PER_NODE", raw.nproc_per_node);
  return taken;
}

std::string source_of(std::string_view problem, std::span<const std::string> variables) {
  for (const std::string& variable : variables) {
    std::string flag = "--" + variable.substr(variable.find('_') + 1);
    std::transform(flag.begin(), flag.end(), flag.begin(),
                   [](unsigned char c) { return c == '_' ? '-' : static_cast<char>(std::tolower(c)); });
    if (problem.starts_with(flag) && !problem.substr(flag.size()).starts_with('-')) {
      return fmt::format("; the variable {} says so", variable);
    }
  }
  return {};
}

std::string interpret(const RawRunFlags& raw, RunOptions& options) {
  if (!raw.nproc_per_node.empty()) options.nproc_per_node = raw.nproc_per_node;
  if (!is_torch_nproc_word(options.nproc_per_node)) {
    if (auto problem = ranks_problem("--nproc-per-node", options.nproc_per_node); !problem.empty()) return problem;
  }
  if (!raw.ranks.empty()) {
    if (auto problem = ranks_problem("-n", raw.ranks); !problem.empty()) return problem;
    options.ranks = static_cast<int>(*parse_count(raw.ranks, kMaxRanks));
  }
  if (auto problem = interpret_metrics(raw.metrics_port, options); !problem.empty()) return problem;
  if (auto problem = interpret_nodes(raw, options); !problem.empty()) return problem;
  if (!raw.max_restarts.empty()) {
    const auto most = parse_int(raw.max_restarts);
    if (!most || *most < 0 || *most > kMostRestarts) {
      return fmt::format("--max-restarts {}: give a number from 0 to {}", raw.max_restarts, kMostRestarts);
    }
    options.max_restarts = static_cast<int>(*most);
  }
  if (!raw.grace.empty()) {
    const auto grace = parse_seconds(raw.grace);
    if (!grace) return fmt::format("--grace {}: give seconds from 0 to 86400, such as 0.7", raw.grace);
    options.grace = *grace;
  }
  if (!raw.timeout.empty()) {
    const auto seconds = parse_count(raw.timeout, 30 * 86400);
    if (!seconds) return fmt::format("--timeout {}: give whole seconds, at least 1 and at most 30 days", raw.timeout);
    options.timeout = static_cast<int>(*seconds);
  }
  try {
    if (!raw.master_addr.empty()) options.master_addr = net::parse_host(raw.master_addr);
  } catch (const InvalidArgument& error) {
    return fmt::format("--master-addr: {}", error.what());
  }
  if (!raw.master_port.empty()) {
    const auto port = parse_port(raw.master_port);
    if (!port)
      return fmt::format("--master-port {}: give a port from 1 to 65535, or 0 for a free one", raw.master_port);
    options.master_port = *port;
  }
  if (auto problem = interpret_rendezvous(raw, options); !problem.empty()) return problem;
  if (auto problem = interpret_output(raw, options); !problem.empty()) return problem;
  if (raw.devices) {
    const auto devices = parse_devices(*raw.devices);
    if (!devices) {
      return fmt::format("--devices {}: give GPUs by index, such as 0,3, or by UUID, as nvidia-smi -L shows them",
                         raw.devices->empty() ? "''" : *raw.devices);
    }
    options.devices = *devices;
  }
  constexpr std::array<std::string_view, 7> kBackends = {"auto", "shm", "tcp", "gloo", "mpi", "nccl", "single"};
  if (!raw.backend.empty() && std::find(kBackends.begin(), kBackends.end(), raw.backend) == kBackends.end()) {
    const auto meant = nearest(raw.backend, kBackends);
    return fmt::format("--backend {}: give auto, shm, tcp (or gloo), mpi, nccl or single{}", raw.backend,
                       meant ? fmt::format("; did you mean {}?", *meant) : "");
  }
  options.backend = raw.backend;
  if (!raw.hang_timeout.empty()) {
    const auto seconds = parse_seconds(raw.hang_timeout);
    if (raw.hang_timeout != "off" && (!seconds || *seconds < membership::kLeastHang)) {
      return fmt::format("--hang-timeout {}: give seconds from {} to 86400, or off", raw.hang_timeout,
                         std::chrono::duration<double>(membership::kLeastHang).count());
    }
    options.hang_timeout = raw.hang_timeout;
  }
  if (!raw.stop_timeout.empty()) {
    const auto seconds = parse_seconds(raw.stop_timeout);
    if (!seconds || seconds->count() == 0) {
      return fmt::format("--stop-timeout {}: give seconds above 0 and at most 86400", raw.stop_timeout);
    }
    options.stop_timeout = raw.stop_timeout;
  }
  if (!raw.requeue_exit_code.empty()) {
    const auto code = parse_count(raw.requeue_exit_code, kMostRequeueCode);
    if (!code) {
      return fmt::format("--requeue-exit-code {}: give a code from 1 to {}", raw.requeue_exit_code, kMostRequeueCode);
    }
    options.requeue_exit_code = static_cast<int>(*code);
  }
  if (!raw.liveness.empty()) {
    const auto seconds = parse_seconds(raw.liveness);
    if (raw.liveness != "on" && raw.liveness != "off" && (!seconds || *seconds < std::chrono::seconds(2))) {
      return fmt::format("--liveness {}: give on, off, or seconds from 2 to 86400", raw.liveness);
    }
    options.liveness = raw.liveness;
  }
  return {};
}

}  // namespace lockstep::launcher
