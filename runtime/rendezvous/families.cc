#include "runtime/rendezvous/families.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <climits>

#include "runtime/base/error.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::string_view kByHand =
    "start the program with `lockstep run`, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT";

std::optional<int> get_bounded(const Environment& environment, std::string_view name, std::int64_t low,
                               std::int64_t high) {
  const auto value = environment.get_int(name);
  if (!value) return std::nullopt;
  if (*value < low || *value > high) {
    throw InvalidArgument(
        fmt::format("environment: {}={} is out of range; it must be from {} to {}", name, *value, low, high));
  }
  return static_cast<int>(*value);
}

// rank of size, both set.
void read_rank(const Environment& environment, std::string_view rank_name, std::string_view size_name, int& rank,
               int& size) {
  size = *get_bounded(environment, size_name, 1, INT_MAX);
  const auto value = *environment.get_int(rank_name);
  if (value < 0 || value >= size) {
    throw InvalidArgument(
        fmt::format("environment: {}={} with {}={}: ranks of this world are 0 to {}; correct one of them", rank_name,
                    value, size_name, size, size - 1));
  }
  rank = static_cast<int>(value);
}

void read_local(const Environment& environment, std::string_view rank_name, std::string_view size_name,
                Identity& identity) {
  const auto size = get_bounded(environment, size_name, 1, identity.world_size);
  const auto rank = get_bounded(environment, rank_name, 0, (size ? *size : identity.world_size) - 1);
  identity.local_rank_known = rank.has_value();
  identity.local_world_size_known = size.has_value();
  identity.local_rank = rank.value_or(0);
  identity.local_world_size = size.value_or(1);
}

void read_master(const Environment& environment, Identity& identity) {
  identity.master_addr = environment.get("MASTER_ADDR").value_or("");
  identity.master_port = get_bounded(environment, "MASTER_PORT", 1, 65535).value_or(0);
}

constexpr std::array<std::string_view, 8> kContract = {"LOCKSTEP_STORE",   "RANK",       "WORLD_SIZE",  "LOCAL_RANK",
                                                       "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"};

// RANK and WORLD_SIZE as torchrun sets them, which `lockstep run` sets too. Nothing if neither is set.
std::optional<Reading> read_contract(const Environment& environment) {
  const bool has_rank = environment.has("RANK");
  const bool has_size = environment.has("WORLD_SIZE");
  if (!has_rank && !has_size) return std::nullopt;
  Reading reading;
  reading.variables = list_set(environment, kContract);
  if (!has_rank || !has_size) {
    reading.problem =
        fmt::format("{} is set but {} is not ({}); {}, or unset {} to run alone", has_rank ? "RANK" : "WORLD_SIZE",
                    has_rank ? "WORLD_SIZE" : "RANK", reading.variables, kByHand, has_rank ? "RANK" : "WORLD_SIZE");
    return reading;
  }
  Identity& identity = reading.identity;
  read_rank(environment, "RANK", "WORLD_SIZE", identity.rank, identity.world_size);
  read_local(environment, "LOCAL_RANK", "LOCAL_WORLD_SIZE", identity);
  identity.node_rank = get_bounded(environment, "GROUP_RANK", 0, identity.world_size - 1);
  read_master(environment, identity);
  return reading;
}

std::optional<Reading> read_lockstep_run(const Environment& environment) {
  const auto store = environment.get("LOCKSTEP_STORE");
  if (!store) return std::nullopt;
  auto reading = read_contract(environment);
  if (!reading) {
    reading.emplace();
    reading->variables = list_set(environment, kContract);
    reading->problem = fmt::format(
        "LOCKSTEP_STORE={} is set but RANK and WORLD_SIZE are not; set both, start the program with `lockstep run`, or "
        "unset LOCKSTEP_STORE to run alone",
        *store);
  }
  Identity& identity = reading->identity;
  identity.source = "lockstep run";
  identity.store_address = *store;
  identity.run_id = environment.get("LOCKSTEP_RUN_ID").value_or("");
  identity.restart_count = get_bounded(environment, "LOCKSTEP_RESTART_COUNT", 0, INT_MAX).value_or(0);
  return reading;
}

std::optional<Reading> read_torchrun(const Environment& environment) {
  if (environment.has("LOCKSTEP_STORE")) return std::nullopt;  // those variables are then our launcher's
  auto reading = read_contract(environment);
  if (!reading) return std::nullopt;
  Identity& identity = reading->identity;
  const auto run_id = environment.get("TORCHELASTIC_RUN_ID");
  identity.source = run_id ? "torchrun" : "RANK and WORLD_SIZE";
  identity.run_id = run_id.value_or(environment.get("LOCKSTEP_RUN_ID").value_or(""));
  identity.restart_count = get_bounded(environment, "TORCHELASTIC_RESTART_COUNT", 0, INT_MAX).value_or(0);
  identity.agent_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True";
  // Kubeflow's PyTorchJob gives each pod a RANK, and WORLD_SIZE counts processes.
  const auto per_pod = environment.get("PET_NPROC_PER_NODE");
  if (per_pod && *per_pod != "1" && !identity.local_rank_known && reading->problem.empty()) {
    reading->problem = fmt::format(
        "PET_NPROC_PER_NODE={} says that RANK={} is a pod's, not a process's; start the processes of this pod with "
        "`lockstep run` or torchrun, or set LOCAL_RANK if RANK is a process's",
        *per_pod, identity.rank);
  }
  return reading;
}

std::optional<Reading> read_open_mpi(const Environment& environment) {
  // OMPI_COMM_WORLD_NODE_RANK is the rank on its node over all jobs, not the node's index, and OMPI_UNIVERSE_SIZE
  // counts slots, not processes: neither is read.
  static constexpr std::array<std::string_view, 5> kNames = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                             "PMIX_NAMESPACE"};
  const bool has_rank = environment.has("OMPI_COMM_WORLD_RANK");
  const bool has_size = environment.has("OMPI_COMM_WORLD_SIZE");
  if (!has_rank && !has_size) return std::nullopt;
  Reading reading;
  reading.variables = list_set(environment, kNames);
  Identity& identity = reading.identity;
  identity.source = "Open MPI";
  if (!has_rank || !has_size) {
    reading.problem =
        fmt::format("{} is set but {} is not ({}); start the program with mpirun itself, or {}",
                    has_rank ? kNames[0] : kNames[1], has_rank ? kNames[1] : kNames[0], reading.variables, kByHand);
    return reading;
  }
  read_rank(environment, kNames[0], kNames[1], identity.rank, identity.world_size);
  read_local(environment, kNames[2], kNames[3], identity);
  for (const std::string_view name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"}) {
    if (const auto value = environment.get(name)) {
      identity.job_id = *value;
      break;
    }
  }
  identity.run_id = identity.job_id;
  identity.pmix = environment.has("PMIX_NAMESPACE") && environment.has("PMIX_RANK");
  read_master(environment, identity);
  return reading;
}

// Launchers that are recognised and not read. Running alone under one of them would be N silent worlds of one.
std::optional<Reading> refuse(const Environment& environment, std::string_view launcher,
                              std::span<const std::string_view> names) {
  Reading reading;
  reading.variables = list_set(environment, names);
  if (reading.variables.empty()) return std::nullopt;
  reading.problem = fmt::format(
      "{} started this process ({}), which lockstep does not read yet; {}, or unset these to "
      "run alone",
      launcher, reading.variables, kByHand);
  return reading;
}

std::optional<Reading> read_pmi(const Environment& environment) {
  static constexpr std::array<std::string_view, 4> kNames = {"PMI_RANK", "PMI_ID", "PMI_SIZE", "MV2_COMM_WORLD_RANK"};
  return refuse(environment, "a PMI launcher (MPICH, Intel MPI, MVAPICH or srun)", kNames);
}

std::optional<Reading> read_pmix(const Environment& environment) {
  static constexpr std::array<std::string_view, 2> kNames = {"PMIX_RANK", "PMIX_NAMESPACE"};
  if (environment.has("OMPI_COMM_WORLD_RANK")) return std::nullopt;  // Open MPI's own, read above
  return refuse(environment, "a PMIx launcher that does not say how many ranks there are", kNames);
}

std::optional<Reading> read_slurm(const Environment& environment) {
  static constexpr std::array<std::string_view, 4> kNames = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID",
                                                             "SLURM_LOCALID"};
  // A batch script has SLURM_PROCID=0 and SLURM_NTASKS too, and so has what srun starts once: those run alone.
  const auto tasks = environment.get_int("SLURM_STEP_NUM_TASKS");
  if (!environment.has("SLURM_STEP_ID") || !environment.has("SLURM_PROCID") || !tasks || *tasks <= 1)
    return std::nullopt;
  return refuse(environment, "srun", kNames);
}

std::optional<Reading> read_others(const Environment& environment) {
  static constexpr std::array<std::string_view, 5> kNames = {"PALS_RANKID", "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK",
                                                             "HOROVOD_RANK", "MLX_RANK"};
  return refuse(environment, "another launcher", kNames);
}

constexpr std::array<Family, 7> kFamilies = {{
    {"lockstep run", read_lockstep_run},
    {"RANK and WORLD_SIZE", read_torchrun},
    {"Open MPI", read_open_mpi},
    {"PMI", read_pmi},
    {"PMIx", read_pmix},
    {"Slurm", read_slurm},
    {"other launchers", read_others},
}};

}  // namespace

std::span<const Family> families() { return kFamilies; }

std::string list_set(const Environment& environment, std::span<const std::string_view> names) {
  std::vector<std::string> found;
  for (const std::string_view name : names) {
    if (const auto value = environment.get(name)) found.push_back(fmt::format("{}={}", name, *value));
  }
  return fmt::format("{}", fmt::join(found, " "));
}

}  // namespace lockstep::rendezvous
