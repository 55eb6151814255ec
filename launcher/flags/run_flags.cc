// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/run_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "launcher/flags/flag_values.h"
#include "lockstep/base/error.h"
#include "runtime/base/text.h"
#include "runtime/job/exit_code.h"
#include "runtime/membership/membership_table.h"
#include "runtime/net/address.h"

namespace lockstep::launcher {
namespace {

bool is_torch_nproc_word(std::string_view text) { return text == "auto" || text == "cpu" || text == "gpu"; }

int ranks_in(std::string_view flag, std::string_view text) {
  if (const auto ranks = parse_count(text, kMaxRanks)) return static_cast<int>(*ranks);
  if (flag == "-n" && text == "p") refuse("-np is a flag of mpirun; here it is -n");
  refuse("{} {}: give a number of ranks from 1 to {}{}", flag, text, kMaxRanks,
         flag == "-n" ? "" : ", or auto, cpu or gpu");
}

// Parses "join_timeout=600,timeout=900,last_call_timeout=30": --rdzv-timeout is join_timeout, else timeout.
void interpret_conf(const std::string& text, RunOptions& options) {
  std::optional<std::chrono::milliseconds> timeout;
  for (const std::string_view item : split(text, ',')) {
    const auto equals = item.find('=');
    const auto name = item.substr(0, equals);
    const auto seconds = equals == item.npos ? std::nullopt : parse_seconds(std::string(item.substr(equals + 1)));
    const bool is_wait = name == "last_call_timeout";
    if ((name != "join_timeout" && name != "timeout" && !is_wait) || !seconds || (seconds->count() == 0 && !is_wait)) {
      refuse(
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
}

// Parses "9400", on loopback, or "0.0.0.0:9400".
net::HostPort metrics_address(const std::string& text) {
  if (parse_int(text)) {
    return {"127.0.0.1",
            required(parse_port(text), "--metrics-port", text, "give a port, or ADDRESS:PORT; ports are 0 to 65535")};
  }
  try {
    return net::parse_host_port(text);
  } catch (const InvalidArgument& error) {
    refuse("--metrics-port {}: give a port, or ADDRESS:PORT to be reached from elsewhere ({})", text, error.what());
  }
}

void interpret_nodes(const RawRunFlags& raw, RunOptions& options) {
  if (!raw.nnodes.empty()) {
    const auto colon = raw.nnodes.find(':');
    const auto nodes = parse_count(raw.nnodes.substr(0, colon), kMaxNodes);
    const auto most = colon == std::string::npos ? nodes : parse_count(raw.nnodes.substr(colon + 1), kMaxNodes);
    if (!nodes || !most || *most < *nodes) {
      refuse("--nnodes {}: give a number of hosts from 1 to {}, or LEAST:MOST", raw.nnodes, kMaxNodes);
    }
    options.least_nodes = static_cast<int>(*nodes);
    options.nodes = static_cast<int>(*most);
  }
  read_flag("--node-rank", raw.node_rank, options.node_rank, up_to(options.nodes - 1, 0),
            fmt::format("give a number from 0 to {}, one less than --nnodes", options.nodes - 1));
}

void interpret_rendezvous(const RawRunFlags& raw, RunOptions& options) {
  if (!raw.rdzv_backend.empty() && raw.rdzv_backend != "static" && raw.rdzv_backend != "c10d") {
    refuse(
        "--rdzv-backend {}: there are static and c10d, which mean the same here: node rank 0 serves the "
        "job's store",
        raw.rdzv_backend);
  }
  if (!raw.rdzv_conf.empty()) interpret_conf(raw.rdzv_conf, options);
  if (!raw.rdzv_timeout.empty()) options.rdzv_timeout = seconds_above_0("--rdzv-timeout", raw.rdzv_timeout);
  read_flag("--rdzv-wait", raw.rdzv_wait, options.rdzv_wait, parse_seconds, "give seconds from 0 to 86400");
  if (!raw.rdzv_wait.empty() && !options.hosts_may_change()) {
    refuse("--rdzv-wait {}: it is for --nnodes LEAST:MOST; all hosts are waited for", raw.rdzv_wait);
  }
  options.run_id = raw.rdzv_id;
  interpret_hosts(raw, options);
  if (options.nodes == 1) return;
  if (options.ranks) {
    refuse("-n {}: with --nnodes {} each host says its own number of ranks: --nproc-per-node", *options.ranks,
           options.nodes);
  }
  if (!raw.rdzv_endpoint.empty()) {
    options.endpoint =
        parsed_as("--rdzv-endpoint", [&] { return net::parse_host_port(raw.rdzv_endpoint, kRendezvousPort); });
  } else if (!raw.master_addr.empty()) {
    options.endpoint = {options.master_addr,
                        options.master_port == 0 ? kRendezvousPort : static_cast<std::uint16_t>(options.master_port)};
    options.master_port = 0;  // the job's store is there
  }
  if (options.endpoint.host.empty() || options.endpoint.port == 0) {
    refuse(
        "--nnodes {}: give --rdzv-endpoint HOST:PORT, the same on every host: an address of node rank 0's and a port "
        "that is free there",
        options.nodes);
  }
  if (raw.master_addr.empty()) options.master_addr = options.endpoint.host;
}

void interpret_output(const RawRunFlags& raw, RunOptions& options) {
  read_flag("--tee", raw.tee, options.tee, Tee::parse,
            "give 1 for stdout, 2 for stderr, 3 for both or 0 for neither; --ranks chooses ranks");
  if ((options.tee.out || options.tee.err) && options.log_dir.empty()) {
    refuse("--tee {}: it shows here what goes to the files of --log-dir; give --log-dir DIR", raw.tee);
  }
  read_flag("--ranks", raw.shown_ranks, options.shown_ranks, RankSet::parse,
            "give ranks and ranges of them, such as 0,3 or 0-2,7");
  if (!raw.shown_ranks.empty() && raw.tee.empty()) options.tee = {.out = true, .err = true};
  read_flag("--bind", raw.bind, options.binding, parse_binding, "give core, numa or none");
}

}  // namespace

void interpret_hosts(const RawRunFlags& raw, RunOptions& options) {
  if (raw.hosts.empty() && raw.hostfile.empty()) {
    if (options.rsh.empty() && options.exported.empty()) return;
    refuse("--rsh and -x are for hosts that -H or --hostfile names; give one of these");
  }
  if (!raw.hosts.empty() && !raw.hostfile.empty()) refuse("-H and --hostfile both name the hosts; give one of them");
  if (!raw.nnodes.empty() || !raw.node_rank.empty()) {
    refuse("-H and --hostfile give the hosts their number and node ranks; leave out --nnodes and --node-rank");
  }
  for (const std::string& wish : options.exported) {
    if (wish.empty() || wish.front() == '=') refuse("-x {}: give NAME or NAME=VALUE", wish);
  }
  if (!raw.hosts.empty()) options.hosts = parse_hosts(raw.hosts);
  if (!raw.rdzv_endpoint.empty()) options.endpoint = net::parse_host_port(raw.rdzv_endpoint, std::uint16_t{0});
  options.hostfile = raw.hostfile;
}

std::vector<std::string> take_variables(const Environment& environment, RawRunFlags& raw) {
  std::vector<std::string> taken;
  const auto take = [&](const char* name, std::string& flag) {
    if (!flag.empty() || !environment.has(name)) return;
    flag = *environment.get(name);
    taken.emplace_back(name);
  };
  take("LOCKSTEP_BACKEND", raw.backend);
  // PET_ variables describe a launcher on one of the hosts
  if (!raw.hosts.empty() || !raw.hostfile.empty()) return taken;
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

void interpret(const RawRunFlags& raw, RunOptions& options) {
  if (!raw.nproc_per_node.empty()) options.nproc_per_node = raw.nproc_per_node;
  if (!is_torch_nproc_word(options.nproc_per_node)) ranks_in("--nproc-per-node", options.nproc_per_node);
  if (!raw.ranks.empty()) options.ranks = ranks_in("-n", raw.ranks);
  if (!raw.metrics_port.empty()) options.metrics = metrics_address(raw.metrics_port);
  interpret_nodes(raw, options);
  read_flag("--max-restarts", raw.max_restarts, options.max_restarts, up_to(kMostRestarts, 0),
            fmt::format("give a number from 0 to {}", kMostRestarts));
  read_flag("--grace", raw.grace, options.grace, parse_seconds, "give seconds from 0 to 86400, such as 0.7");
  read_flag("--timeout", raw.timeout, options.timeout, up_to(30 * 86400),
            "give whole seconds, at least 1 and at most 30 days");
  if (!raw.master_addr.empty()) {
    options.master_addr = parsed_as("--master-addr", [&] { return net::parse_host(raw.master_addr); });
  }
  read_flag("--master-port", raw.master_port, options.master_port, parse_port,
            "give a port from 1 to 65535, or 0 for a free one");
  interpret_rendezvous(raw, options);
  interpret_output(raw, options);
  if (raw.devices) {
    options.devices = required(parse_devices(*raw.devices), "--devices", raw.devices->empty() ? "''" : *raw.devices,
                               "give GPUs by index, such as 0,3, or by UUID, as nvidia-smi -L shows them");
  }
  constexpr std::array<std::string_view, 7> kBackends = {"auto", "shm", "tcp", "gloo", "mpi", "nccl", "single"};
  if (!raw.backend.empty() && std::ranges::find(kBackends, raw.backend) == kBackends.end()) {
    const auto meant = nearest(raw.backend, kBackends);
    refuse("--backend {}: give auto, shm, tcp (or gloo), mpi, nccl or single{}", raw.backend,
           meant ? fmt::format("; did you mean {}?", *meant) : "");
  }
  options.backend = raw.backend;
  if (!raw.hang_timeout.empty()) {
    const auto seconds = parse_seconds(raw.hang_timeout);
    if (raw.hang_timeout != "off" && (!seconds || *seconds < membership::kLeastHang)) {
      refuse("--hang-timeout {}: give seconds from {} to 86400, or off", raw.hang_timeout,
             std::chrono::duration<double>(membership::kLeastHang).count());
    }
    options.hang_timeout = raw.hang_timeout;
  }
  if (!raw.stop_timeout.empty()) seconds_above_0("--stop-timeout", raw.stop_timeout);
  options.stop_timeout = raw.stop_timeout;
  read_flag("--requeue-exit-code", raw.requeue_exit_code, options.requeue_exit_code, up_to(kMostRequeueCode),
            fmt::format("give a code from 1 to {}", kMostRequeueCode));
  if (!raw.liveness.empty()) {
    const auto seconds = parse_seconds(raw.liveness);
    if (raw.liveness != "on" && raw.liveness != "off" && (!seconds || *seconds < std::chrono::seconds(2))) {
      refuse("--liveness {}: give on, off, or seconds from 2 to 86400", raw.liveness);
    }
    options.liveness = raw.liveness;
  }
}

}  // namespace lockstep::launcher
