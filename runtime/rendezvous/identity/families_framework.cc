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

using Verdict = Reading::Verdict;

Reading incomplete(std::string variables, std::string problem) {
  Reading reading;
  reading.variables = std::move(variables);
  reading.problem = std::move(problem);
  reading.verdict = Verdict::incomplete;
  return reading;
}

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
Reading read_mlx_ring(const Environment& environment, const FileReader& read_file, std::string variables) {
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
  Reading reading = read_world(with_size, "MLX (ring)", "MLX_RANK", "MLX_HOSTFILE", std::move(variables), kByHand);
  if (reading.verdict != Verdict::rank) return reading;
  stand_in_for_master(reading.identity, first_address(hosts.front()), "MLX_HOSTFILE");
  return reading;
}

Reading read_mlx_nccl(const Environment& environment, std::string variables) {
  Reading reading = read_world(environment, "MLX (nccl)", "MLX_RANK", "MLX_WORLD_SIZE", std::move(variables), kByHand);
  if (reading.verdict != Verdict::rank) return reading;
  const auto host = environment.get("NCCL_HOST_IP");
  const auto port = environment.get("NCCL_PORT");
  if (host && port) {
    const bool bare_ipv6 = !host->starts_with('[') && host->find(':') != host->npos;
    stand_in_for_master(reading.identity, (bare_ipv6 ? "[" + *host + "]" : *host) + ":" + *port, "NCCL_HOST_IP");
  }
  return reading;
}

}  // namespace

// HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT are of a server of horovodrun's: it names the job, and rank 0 can't take it.
MaybeReading read_horovod(const Environment& environment, const FileReader&) {
  if (!environment.has("HOROVOD_RANK") && !environment.has("HOROVOD_SIZE")) return std::nullopt;
  const std::string variables = list_set(environment, {"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK",
                                                       "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_ELASTIC"});
  if (environment.get("HOROVOD_ELASTIC").value_or("0") != "0") {
    return incomplete(variables, fmt::format("horovodrun in elastic mode changes ranks while the program runs ({}), "
                                             "which lockstep does not follow; start it without --min-np and "
                                             "--host-discovery-script, or {}",
                                             variables, kByHand));
  }
  Reading reading = read_world(environment, "horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", variables, kByHand,
                               {"HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"});
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  identity.node_rank = get_bounded(environment, "HOROVOD_CROSS_RANK", 0, identity.world_size - 1);
  const auto server = environment.get("HOROVOD_GLOO_RENDEZVOUS_ADDR");
  const auto port = environment.get("HOROVOD_GLOO_RENDEZVOUS_PORT");
  if (server && port) name_job(identity, "horovodrun", fmt::format("{}:{}", *server, *port));
  return reading;
}

MaybeReading read_mlx(const Environment& environment, const FileReader& read_file) {
  if (!environment.has("MLX_RANK")) return std::nullopt;
  std::string variables =
      list_set(environment, {"MLX_RANK", "MLX_WORLD_SIZE", "NCCL_HOST_IP", "NCCL_PORT", "MLX_HOSTFILE"});
  if (environment.has("MLX_WORLD_SIZE")) return read_mlx_nccl(environment, std::move(variables));
  if (environment.has("MLX_HOSTFILE")) return read_mlx_ring(environment, read_file, std::move(variables));
  return incomplete(variables, fmt::format("{} is set but neither MLX_WORLD_SIZE nor MLX_HOSTFILE is; start the "
                                           "program with mlx.launch, or {}, or unset MLX_RANK to run alone",
                                           variables, kByHand));
}

}  // namespace lockstep::rendezvous
