// SPDX-License-Identifier: Apache-2.0
// Process managers of MPI libraries.
#include <fmt/format.h>

#include <climits>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/net/address.h"
#include "runtime/rendezvous/identity/family_readers.h"
#include "runtime/rendezvous/identity/identity.h"

namespace lockstep::rendezvous {
namespace {

using Verdict = Reading::Verdict;

constexpr std::string_view kMpirunItself =
    "start the program with mpirun itself, or with `lockstep run`, or set RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT";

// Azure ML names rank 0's host for jobs of Open MPI.
void read_azure(const Environment& environment, Identity& identity) {
  for (const std::string_view name : {"AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE"}) {
    const auto value = environment.get(name);
    if (!value) continue;
    net::HostPort address;
    try {
      address = net::parse_host_port(*value, std::uint16_t{0});
    } catch (const InvalidArgument& error) {
      log_warn("who am I: {}={} names no host and is left aside: {}", name, *value, error.what());
      continue;
    }
    const int port = port_of_job(fmt::format("azure/{}", environment.get("AZUREML_RUN_ID").value_or(*value)));
    stand_in_for_master(identity, address.host, address.port != 0 ? address.port : port, name);
    return;
  }
}

}  // namespace

MaybeReading read_open_mpi(const Environment& environment, const FileReader&) {
  // OMPI_COMM_WORLD_NODE_RANK is the rank on its node over all jobs, not the node's index, and OMPI_UNIVERSE_SIZE
  // counts slots, not processes: neither is read.
  constexpr std::string_view kRank = "OMPI_COMM_WORLD_RANK";
  constexpr std::string_view kSize = "OMPI_COMM_WORLD_SIZE";
  if (!environment.has(kRank) && !environment.has(kSize)) return std::nullopt;
  Reading reading = read_world(environment, "Open MPI", kRank, kSize,
                               list_set(environment, {kRank, kSize, "OMPI_COMM_WORLD_LOCAL_RANK",
                                                      "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"}),
                               kMpirunItself, {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  const auto job = first_set(environment, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"});
  name_job(identity, "mpirun", environment.get(job).value_or(""));
  read_pmix_server(environment, identity);
  read_azure(environment, identity);
  return reading;
}

MaybeReading read_mvapich(const Environment& environment, const FileReader&) {
  constexpr std::string_view kRank = "MV2_COMM_WORLD_RANK";
  constexpr std::string_view kSize = "MV2_COMM_WORLD_SIZE";
  if (!environment.has(kRank) && !environment.has(kSize)) return std::nullopt;
  Reading reading =
      read_world(environment, "MVAPICH2", kRank, kSize,
                 list_set(environment, {kRank, kSize, "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"}),
                 kMpirunItself, {"MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"});
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  identity.job_family = "mvapich";
  identity.job_ancestors = {"mpispawn", "hydra_pmi_proxy"};
  read_pmix_server(environment, identity);
  return reading;
}

// Hydra of MPICH and of Intel MPI, which have the same names. I_MPI_* and HYDRA_* are settings, or describe the host.
MaybeReading read_hydra(const Environment& environment, const FileReader&) {
  if (!environment.has("MPI_LOCALRANKID") && !environment.has("MPI_LOCALNRANKS")) return std::nullopt;
  const std::string variables = list_set(
      environment, {"PMI_RANK", "PMI_ID", "PMI_SIZE", "PMI_PORT", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PALS_RANKID"});
  if (environment.has("PALS_RANKID") || environment.has("OMPI_COMM_WORLD_RANK")) return std::nullopt;  // sets these too
  if (environment.has("PMI_ID") && !environment.has("PMI_SIZE")) {
    Reading reading;
    reading.variables = variables;
    reading.verdict = Verdict::incomplete;
    reading.problem = fmt::format(
        "Hydra in port mode says which rank this is and not how many there are ({}); start it without -pmi-port, or {}",
        variables, kByHand);
    return reading;
  }
  Reading reading =
      read_world(environment, "Hydra (MPICH, Intel MPI)", environment.has("PMI_RANK") ? "PMI_RANK" : "PMI_ID",
                 "PMI_SIZE", variables, kMpirunItself, {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  identity.job_family = "hydra";
  identity.job_ancestors = {"hydra_pmi_proxy"};
  read_pmix_server(environment, identity);
  return reading;
}

// PMI_RANK and PMI_SIZE alone, as a PMI plug-in of a scheduler sets them beside its own variables.
MaybeReading read_pmi(const Environment& environment, const FileReader&) {
  if (environment.has("MPI_LOCALRANKID") || environment.has("PALS_RANKID")) return std::nullopt;
  if (!environment.has("PMI_RANK") && !environment.has("PMI_ID") && !environment.has("PMI_SIZE")) return std::nullopt;
  Reading reading = read_world(environment, "PMI", environment.has("PMI_RANK") ? "PMI_RANK" : "PMI_ID", "PMI_SIZE",
                               list_set(environment, {"PMI_RANK", "PMI_ID", "PMI_SIZE"}), kByHand,
                               {"PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"});
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  if (const auto job = environment.get("PMI_JOBID")) name_job(identity, "pmi", *job);
  read_pmix_server(environment, identity);
  return reading;
}

// A PMIx server knows how many ranks there are, and has to be asked.
MaybeReading read_pmix(const Environment& environment, const FileReader&) {
  Reading reading;
  reading.variables = list_set(environment, {"PMIX_RANK", "PMIX_NAMESPACE"});
  // PALS sets the rank too, for its own library.
  if (reading.variables.empty() || environment.has("PALS_RANKID")) return std::nullopt;
  const auto rank = get_bounded(environment, "PMIX_RANK", 0, INT_MAX);
  if (!rank || !environment.has("PMIX_NAMESPACE")) {
    reading.verdict = Verdict::incomplete;
    reading.problem = fmt::format("{} is set but {} is not; {}, or unset it to run alone", reading.variables,
                                  rank ? "PMIX_NAMESPACE" : "PMIX_RANK", kByHand);
    return reading;
  }
  Identity& identity = reading.identity;
  identity.source = "PMIx";
  identity.rank = *rank;
  identity.size_from_pmix = true;
  name_job(identity, "pmix", *environment.get("PMIX_NAMESPACE"));
  read_pmix_server(environment, identity);
  read_master(environment, identity);
  return reading;
}

// Pods of Kubeflow's MPIJob. Its ranks are mpirun's; any other process there is not a rank.
MaybeReading read_mpi_job(const Environment& environment, const FileReader&) {
  Reading reading;
  reading.variables = list_set(environment, {"K_MPI_JOB_ROLE"});
  if (reading.variables.empty()) return std::nullopt;
  reading.verdict = Verdict::no_rank;
  return reading;
}

}  // namespace lockstep::rendezvous
