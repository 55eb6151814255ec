// SPDX-License-Identifier: Apache-2.0
// Launchers of other frameworks for training.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "runtime/net/address.h"
#include "runtime/rendezvous/identity/family_readers.h"

namespace lockstep::rendezvous {
namespace {

// "host:port" of rank 0 from the variable or file called `from`. A text that is not one is ignored: MASTER_ADDR may be
// set, and if not, the plan says what is missing.
void stand_in_for_master(Identity& identity, std::string_view text, std::string_view from) {
  try {
    const net::HostPort address = net::parse_host_port(text);
    rendezvous::stand_in_for_master(identity, address.host, address.port, from);
  } catch (const InvalidArgument&) {
  }
}

// A host of MLX's list is an address or a list of its addresses. Returns the first; empty if there is none.
std::string first_address(const nlohmann::json& host) {
  const nlohmann::json& first = host.is_array() && !host.empty() ? host.front() : host;
  return first.is_string() ? first.get<std::string>() : std::string();
}

// The file that MLX_HOSTFILE names lists the hosts in JSON, one entry for each rank.
Reading read_mlx_ring(const Family& family, const Environment& environment, const FileReader& read_file) {
  std::string variables = list_set(family, environment);
  const std::string path = *environment.get("MLX_HOSTFILE");
  const auto text = read_file(path);
  const auto hosts = nlohmann::json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  const bool is_list = hosts.is_array() && !hosts.empty() &&
                       std::none_of(hosts.begin(), hosts.end(), [](auto& host) { return first_address(host).empty(); });
  if (!is_list) {
    return incomplete(
        std::move(variables),
        fmt::format("MLX_HOSTFILE={} {}; correct it, or {}", path,
                    text ? "holds no list in JSON of one entry for each rank" : "can't be read", kByHand));
  }
  Environment with_size = environment;
  with_size.set("MLX_HOSTFILE", std::to_string(hosts.size()));
  Reading reading = read_world(family, with_size, read_file);
  reading.variables = std::move(variables);
  reading.identity.source = "MLX (ring)";
  stand_in_for_master(reading.identity, first_address(hosts.front()), "MLX_HOSTFILE");
  return reading;
}

}  // namespace

// HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT are of a server of horovodrun's: it names the job, and rank 0 can't take it.
Reading read_horovod(const Family& family, const Environment& environment, const FileReader& read_file) {
  if (environment.get("HOROVOD_ELASTIC").value_or("0") != "0") {
    const std::string variables = list_set(family, environment);
    return incomplete(variables, fmt::format("horovodrun in elastic mode changes ranks while the program runs ({}), "
                                             "which lockstep does not follow; start it without --min-np and "
                                             "--host-discovery-script, or {}",
                                             variables, kByHand));
  }
  Reading reading = read_world(family, environment, read_file);
  const auto server = environment.get("HOROVOD_GLOO_RENDEZVOUS_ADDR");
  const auto port = environment.get("HOROVOD_GLOO_RENDEZVOUS_PORT");
  if (server && port) name_job(reading.identity, family, fmt::format("{}:{}", *server, *port));
  return reading;
}

Reading read_mlx(const Family& family, const Environment& environment, const FileReader& read_file) {
  if (!environment.has("MLX_WORLD_SIZE") && environment.has("MLX_HOSTFILE")) {
    return read_mlx_ring(family, environment, read_file);
  }
  if (!environment.has("MLX_WORLD_SIZE")) {
    const std::string variables = list_set(family, environment);
    return incomplete(variables, fmt::format("{} is set but neither MLX_WORLD_SIZE nor MLX_HOSTFILE is; start the "
                                             "program with mlx.launch, or {}, or unset MLX_RANK to run alone",
                                             variables, kByHand));
  }
  Reading reading = read_world(family, environment, read_file);
  const auto host = environment.get("NCCL_HOST_IP");
  const auto port = environment.get("NCCL_PORT");
  if (host && port) {
    const bool bare_ipv6 = !host->starts_with('[') && host->find(':') != host->npos;
    stand_in_for_master(reading.identity, (bare_ipv6 ? "[" + *host + "]" : *host) + ":" + *port, "NCCL_HOST_IP");
  }
  return reading;
}

}  // namespace lockstep::rendezvous
