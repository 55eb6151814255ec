// Launchers of other frameworks for training.
#include <fmt/format.h>

#include <climits>

#include "runtime/base/error.h"
#include "runtime/net/address.h"
#include "runtime/rendezvous/family_readers.h"
#include "runtime/rendezvous/string_lists.h"
#include "runtime/store/member_info.h"

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

// "host:port" of rank 0 from the variable or file called `from`. A text that is none is left aside: MASTER_ADDR may be
// set, and if not, the plan says what is missing.
void stand_in_for_master(Identity& identity, std::string_view text, std::string_view from) {
  try {
    const net::HostPort address = net::parse_host_port(text);
    rendezvous::stand_in_for_master(identity, address.host, address.port, from);
  } catch (const InvalidArgument&) {
  }
}

// A world whose size is the length of a list in a file.
Reading read_listed_world(const Environment& environment, const FileReader& read_file, std::string_view source,
                          std::string_view rank_name, std::string_view file_name, std::string variables,
                          StringList& list) {
  const std::string path = *environment.get(file_name);
  const auto text = read_file(path);
  const auto parsed = text ? parse_string_list(*text) : std::nullopt;
  if (!parsed || parsed->items.empty()) {
    return incomplete(
        std::move(variables),
        fmt::format("{}={} {}; correct it, or {}", file_name, path,
                    text ? "holds no list in JSON of one entry for each rank" : "can't be read", kByHand));
  }
  Environment with_size = environment;
  with_size.set(std::string(file_name), std::to_string(parsed->items.size()));
  list = *parsed;
  return read_world(with_size, source, rank_name, file_name, std::move(variables), kByHand);
}

Reading read_mlx_nccl(const Environment& environment, std::string variables) {
  Reading reading = read_world(environment, "MLX (nccl)", "MLX_RANK", "MLX_WORLD_SIZE", std::move(variables), kByHand);
  if (reading.verdict != Verdict::rank) return reading;
  read_master(environment, reading.identity);
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
  Reading reading = read_world(environment, "horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", variables, kByHand);
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  read_local(environment, "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", identity);
  identity.node_rank = get_bounded(environment, "HOROVOD_CROSS_RANK", 0, identity.world_size - 1);
  const auto server = environment.get("HOROVOD_GLOO_RENDEZVOUS_ADDR");
  const auto port = environment.get("HOROVOD_GLOO_RENDEZVOUS_PORT");
  if (server && port) name_job(identity, "horovodrun", fmt::format("{}:{}", *server, *port));
  read_master(environment, identity);
  return reading;
}

MaybeReading read_mlx(const Environment& environment, const FileReader& read_file) {
  const auto rank_name = first_set(environment, {"MLX_RANK", "JACCL_RANK"});
  if (rank_name.empty()) return std::nullopt;
  const auto devices = first_set(environment, {"MLX_IBV_DEVICES", "JACCL_IBV_DEVICES"});
  const auto coordinator = first_set(environment, {"MLX_JACCL_COORDINATOR", "JACCL_COORDINATOR"});
  std::string variables = list_set(
      environment, {rank_name, "MLX_WORLD_SIZE", "NCCL_HOST_IP", "NCCL_PORT", "MLX_HOSTFILE", devices, coordinator});
  if (environment.has("MLX_WORLD_SIZE")) return read_mlx_nccl(environment, std::move(variables));
  StringList list;
  if (environment.has("MLX_HOSTFILE")) {
    Reading reading =
        read_listed_world(environment, read_file, "MLX (ring)", rank_name, "MLX_HOSTFILE", std::move(variables), list);
    if (reading.verdict != Verdict::rank) return reading;
    read_master(environment, reading.identity);
    stand_in_for_master(reading.identity, list.items.front().first(), "MLX_HOSTFILE");
    return reading;
  }
  if (!devices.empty()) {
    Reading reading =
        read_listed_world(environment, read_file, "MLX (jaccl)", rank_name, devices, std::move(variables), list);
    if (reading.verdict != Verdict::rank) return reading;
    read_master(environment, reading.identity);
    stand_in_for_master(reading.identity, environment.get(coordinator).value_or(""), coordinator);
    return reading;
  }
  return incomplete(variables, fmt::format("{} is set but neither MLX_WORLD_SIZE, MLX_HOSTFILE nor MLX_IBV_DEVICES is; "
                                           "start the program with mlx.launch, or {}, or unset {} to run alone",
                                           variables, kByHand, rank_name));
}

// DMLC_WORKER_ID and DMLC_NUM_WORKER count machines, each of which has as many processes as this one. The address in
// DMLC_PS_ROOT_URI is the scheduler's: it names the job, and rank 0 can't take it.
MaybeReading read_byteps(const Environment& environment, const FileReader&) {
  const std::string variables = list_set(
      environment, {"DMLC_ROLE", "DMLC_WORKER_ID", "DMLC_NUM_WORKER", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"});
  if (!environment.has("DMLC_WORKER_ID") && !environment.has("BYTEPS_LOCAL_RANK")) return std::nullopt;
  if (environment.get("DMLC_ROLE").value_or("worker") != "worker") {
    return incomplete(variables, fmt::format("this process of BytePS is no worker ({}); train in workers", variables));
  }
  const auto machines = get_bounded(environment, "DMLC_NUM_WORKER", 1, INT_MAX);
  const auto per_machine = get_bounded(environment, "BYTEPS_LOCAL_SIZE", 1, INT_MAX);
  const auto machine = get_bounded(environment, "DMLC_WORKER_ID", 0, machines.value_or(INT_MAX) - 1);
  const auto local_rank = get_bounded(environment, "BYTEPS_LOCAL_RANK", 0, per_machine.value_or(INT_MAX) - 1);
  if (!machines || !per_machine || !machine || !local_rank) {
    return incomplete(variables,
                      fmt::format("of BytePS's variables only these are set: {}; start the program with bpslaunch, or "
                                  "{}, or unset them to run alone",
                                  variables, kByHand));
  }
  if (*machines > store::kMaxWorldSize / *per_machine) {
    throw InvalidArgument(
        fmt::format("environment: {}: DMLC_NUM_WORKER times BYTEPS_LOCAL_SIZE is out of range; it must "
                    "be from 1 to {}",
                    variables, store::kMaxWorldSize));
  }
  Reading reading;
  reading.variables = variables;
  Identity& identity = reading.identity;
  identity.source = "BytePS";
  identity.world_size = *machines * *per_machine;
  identity.rank = *machine * *per_machine + *local_rank;
  identity.local_rank = *local_rank;
  identity.local_world_size = *per_machine;
  identity.local_rank_known = identity.local_world_size_known = true;
  identity.node_rank = *machine;
  const auto scheduler = environment.get("DMLC_PS_ROOT_URI");
  const auto port = environment.get("DMLC_PS_ROOT_PORT");
  if (scheduler && port) name_job(identity, "byteps", fmt::format("{}:{}", *scheduler, *port));
  read_master(environment, identity);
  return reading;
}

}  // namespace lockstep::rendezvous
