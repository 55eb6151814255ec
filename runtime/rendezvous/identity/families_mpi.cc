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

// Azure ML names rank 0's host for jobs of Open MPI.
Reading read_open_mpi(const Family& family, const Environment& environment, const FileReader& read_file) {
  Reading reading = read_world(family, environment, read_file);
  for (const std::string_view name : {"AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE"}) {
    const auto value = environment.get(name);
    if (!value) continue;
    net::HostPort address;
    try {
      address = net::parse_host_port(*value, std::uint16_t{0});
    } catch (const InvalidArgument& error) {
      log_warn(
          "init_process_group: {}={} names no host, so lockstep ignores this variable: {}; correct or unset the "
          "variable",
          name, *value, error.what());
      continue;
    }
    const int port = port_of_job(fmt::format("azure/{}", environment.get("AZUREML_RUN_ID").value_or(*value)));
    stand_in_for_master(reading.identity, address.host, address.port != 0 ? address.port : port, name);
    break;
  }
  return reading;
}

// Hydra of MPICH and of Intel MPI, which have the same names.
Reading read_hydra(const Family& family, const Environment& environment, const FileReader& read_file) {
  if (!environment.has("PMI_ID") || environment.has("PMI_SIZE")) return read_world(family, environment, read_file);
  const std::string variables = list_set(family, environment);
  return incomplete(variables, fmt::format("Hydra in port mode says which rank this is and not how many there are "
                                           "({}); start it without -pmi-port, or {}",
                                           variables, kByHand));
}

// A PMIx server knows how many ranks there are, and has to be asked.
Reading read_pmix(const Family& family, const Environment& environment, const FileReader&) {
  Reading reading{.variables = list_set(family, environment)};
  const auto rank = get_bounded(environment, "PMIX_RANK", 0, INT_MAX);
  if (!rank || !environment.has("PMIX_NAMESPACE")) {
    return incomplete(reading.variables,
                      fmt::format("{} is set but {} is not; {}, or unset it to run alone", reading.variables,
                                  rank ? "PMIX_NAMESPACE" : "PMIX_RANK", kByHand));
  }
  Identity& identity = reading.identity;
  identity.source = family.name;
  identity.rank = *rank;
  identity.pmix = identity.size_from_pmix = true;
  name_job(identity, family, *environment.get("PMIX_NAMESPACE"));
  read_master(environment, identity);
  return reading;
}

}  // namespace lockstep::rendezvous
