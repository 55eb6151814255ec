// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/net/interfaces.h"
#include "runtime/rendezvous/meeting/local_meeting.h"
#include "runtime/rendezvous/meeting/meet.h"

namespace lockstep::rendezvous {
namespace {

using RendezvousMethod = MeetingPlan::RendezvousMethod;

net::HostPort store_address(const Identity& identity) {
  try {
    net::HostPort address = net::parse_host_port(identity.store_address);
    if (address.host.empty() || address.port == 0) throw InvalidArgument("host and port are both needed");
    return address;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        fmt::format("environment: LOCKSTEP_STORE='{}' is not an address: {}; set it to host:port of the job's store, "
                    "as `lockstep run` does",
                    printable(identity.store_address), error.what()));
  }
}

MeetingPlan at_master(const Identity& identity, RendezvousMethod method) {
  if (identity.master_addr.empty() || identity.master_port == 0) {
    const bool no_address = identity.master_addr.empty();
    const bool no_port = identity.master_port == 0;
    throw InvalidArgument(fmt::format(
        "rendezvous: rank {}/{} (from {}) doesn't know where to meet the others: {} not set; set MASTER_ADDR to rank "
        "0's "
        "host (127.0.0.1 if all ranks are on this one) and MASTER_PORT to a free port there, pass init_method "
        "tcp://host:port or file:///path, or start the program with `lockstep run`",
        identity.rank, identity.world_size, identity.source,
        no_address && no_port ? "MASTER_ADDR and MASTER_PORT are"
                              : (no_address ? "MASTER_ADDR is" : "MASTER_PORT is")));
  }
  return {.method = method,
          .address = {identity.master_addr, static_cast<std::uint16_t>(identity.master_port)},
          .told_by = identity.master_from.empty() ? "MASTER_ADDR and MASTER_PORT" : identity.master_from};
}

// The name of the job on this host, or empty.
std::string job_name(const Identity& identity, std::span<const Ancestor> ancestors) {
  if (!identity.job_id.empty()) return identity.job_id;
  for (const Ancestor& ancestor : ancestors) {
    const auto& wanted = identity.job_ancestors;
    if (std::find(wanted.begin(), wanted.end(), ancestor.command) != wanted.end()) {
      return fmt::format("pid {}", ancestor.pid);
    }
  }
  return {};
}

MeetingPlan at_local_socket(const Identity& identity, std::string_view job) {
  return {.method = RendezvousMethod::local_socket,
          .told_by = identity.source,
          .socket = local_meeting_name(::geteuid(), identity.job_family, job, identity.restart_count)};
}

MeetingPlan choose_method(const Identity& identity, const InitMethod& method, std::string_view bootstrap,
                          std::span<const Ancestor> ancestors) {
  if (!bootstrap.empty() && bootstrap != "socket" && bootstrap != "pmix" && bootstrap != "address") {
    throw InvalidArgument(
        fmt::format("environment: LOCKSTEP_BOOTSTRAP='{}' is unknown; set it to socket, pmix or address, or unset it",
                    printable(bootstrap)));
  }
  if (identity.size_from_pmix) {
    throw InvalidArgument(
        fmt::format("rendezvous: only the launcher's PMIx server knows the world size of rank {} (from {}), and this "
                    "process has not asked it; call ask_launcher() first",
                    identity.rank, identity.source));
  }
  if (identity.world_size == 1) return {};
  if (method.kind == InitMethod::Kind::tcp) {
    return {.method = RendezvousMethod::address, .address = method.address, .told_by = "init_method tcp://"};
  }
  if (method.kind == InitMethod::Kind::file) {
    return {.method = RendezvousMethod::file, .path = method.path, .told_by = "init_method file://"};
  }
  if (!identity.store_address.empty()) {
    return {
        .method = RendezvousMethod::launcher_store, .address = store_address(identity), .told_by = "LOCKSTEP_STORE"};
  }
  if (identity.agent_store) return at_master(identity, RendezvousMethod::agent_store);
  const bool one_host = identity.local_world_size_known && identity.local_world_size == identity.world_size;
  const std::string job = job_name(identity, ancestors);
  if ((bootstrap == "pmix" && !identity.pmix) || (bootstrap == "socket" && job.empty())) {
    throw InvalidArgument(fmt::format(
        "environment: LOCKSTEP_BOOTSTRAP={} can't be followed, because {} to rank {}/{} (from {}); unset this variable",
        bootstrap, bootstrap == "pmix" ? "no launcher offers PMIx" : "no launcher names the job", identity.rank,
        identity.world_size, identity.source));
  }
  if (bootstrap == "socket" || (bootstrap.empty() && one_host && !job.empty())) return at_local_socket(identity, job);
  if (identity.pmix && bootstrap != "address") return {.method = RendezvousMethod::pmix, .told_by = identity.source};
  return at_master(identity, RendezvousMethod::address);
}

}  // namespace

MeetingPlan plan_meeting(const Identity& identity, const InitMethod& method, const Environment& environment,
                         std::span<const Ancestor> ancestors) {
  MeetingPlan plan = choose_method(identity, method, environment.get("LOCKSTEP_BOOTSTRAP").value_or(""), ancestors);
  if (plan.method == RendezvousMethod::alone) return plan;
  plan.secret = store::Secret::of_environment(environment);
  // At the launcher's store not a run id that another launcher has: its server was told ours, or none.
  plan.run_id = plan.method == RendezvousMethod::launcher_store ? environment.get("LOCKSTEP_RUN_ID").value_or("")
                                                                : identity.run_id;
  for (const std::string_view name : net::kInterfaceVariables) {
    if (const auto value = environment.get(name)) plan.interface_wishes.set(std::string(name), *value);
  }
  return plan;
}

}  // namespace lockstep::rendezvous
