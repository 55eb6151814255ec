#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/rendezvous/meet.h"

namespace lockstep::rendezvous {
namespace {

using Means = MeetingPlan::Means;

net::HostPort store_address(const Identity& identity) {
  try {
    net::HostPort address = net::parse_host_port(identity.store_address);
    if (address.host.empty() || address.port == 0) throw InvalidArgument("host and port are both needed");
    return address;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        fmt::format("environment: LOCKSTEP_STORE='{}': {}; it must be host:port of the job's store, as "
                    "`lockstep run` sets it",
                    identity.store_address, error.what()));
  }
}

MeetingPlan at_master(const Identity& identity, Means means) {
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
  return {.means = means,
          .address = {identity.master_addr, static_cast<std::uint16_t>(identity.master_port)},
          .told_by = "MASTER_ADDR and MASTER_PORT"};
}

}  // namespace

MeetingPlan plan_meeting(const Identity& identity, const InitMethod& method, std::string_view bootstrap) {
  if (!bootstrap.empty() && bootstrap != "socket" && bootstrap != "pmix") {
    throw InvalidArgument(fmt::format(
        "environment: LOCKSTEP_BOOTSTRAP='{}' is unknown; set it to socket or pmix, or unset it", bootstrap));
  }
  if (identity.world_size == 1) return {};
  if (method.kind == InitMethod::Kind::tcp) {
    return {.means = Means::address, .address = method.address, .told_by = "init_method tcp://"};
  }
  if (method.kind == InitMethod::Kind::file) {
    return {.means = Means::file, .path = method.path, .told_by = "init_method file://"};
  }
  if (!identity.store_address.empty()) {
    return {.means = Means::launcher_store, .address = store_address(identity), .told_by = "LOCKSTEP_STORE"};
  }
  if (identity.agent_store) return at_master(identity, Means::launcher_store);
  const bool one_host = identity.local_world_size_known && identity.local_world_size == identity.world_size;
  if (bootstrap == "pmix" && !identity.pmix) {
    throw InvalidArgument(fmt::format(
        "environment: LOCKSTEP_BOOTSTRAP=pmix, but no launcher offers PMIx to rank {}/{} (from {}); unset it",
        identity.rank, identity.world_size, identity.source));
  }
  if (!identity.job_id.empty() && bootstrap != "pmix" && (one_host || bootstrap == "socket")) {
    return {.means = Means::local_socket, .told_by = identity.source};
  }
  if (identity.pmix) return {.means = Means::pmix, .told_by = identity.source};
  return at_master(identity, Means::address);
}

}  // namespace lockstep::rendezvous
