// SPDX-License-Identifier: Apache-2.0
// RANK and WORLD_SIZE, by hand and from launchers that speak like torchrun.
#include <fmt/format.h>

#include "runtime/rendezvous/identity/family_readers.h"

namespace lockstep::rendezvous {

// torchft runs one torchrun per replica group: RANK and WORLD_SIZE count within the group, and so does the run.
Reading read_torchrun(const Family& family, const Environment& environment, const FileReader& read_file) {
  Reading reading = read_world(family, environment, read_file);
  Identity& identity = reading.identity;
  identity.agent_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True";
  identity.run_id = environment.get("TORCHELASTIC_RUN_ID").value_or("");
  const auto replica = environment.get("REPLICA_GROUP_ID");
  if (!replica || !environment.has("TORCHFT_LIGHTHOUSE")) return reading;
  identity.source = fmt::format("torchrun, torchft's replica group {}", *replica);
  identity.run_id += fmt::format("/replica {}", *replica);
  return reading;
}

// Kubeflow's PyTorchJob gives each pod a RANK, and its WORLD_SIZE counts processes.
Reading read_by_hand(const Family& family, const Environment& environment, const FileReader& read_file) {
  Reading reading = read_world(family, environment, read_file);
  reading.identity.agent_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const auto per_pod = environment.get("PET_NPROC_PER_NODE");
  if (!per_pod || *per_pod == "1" || environment.has("LOCAL_RANK") || reading.verdict != Reading::Verdict::rank)
    return reading;
  return incomplete(reading.variables,
                    fmt::format("PET_NPROC_PER_NODE={} says that RANK={} is a pod's, not a process's; start the "
                                "processes of this pod with `lockstep run` or torchrun, or set LOCAL_RANK if RANK is a "
                                "process's",
                                *per_pod, reading.identity.rank));
}

// The trainer pods of Kubeflow have variables that torchrun takes for its flags.
Reading read_kubeflow_pod(const Family& family, const Environment& environment, const FileReader& read_file) {
  const auto is_one = [&](std::string_view name) { return environment.get(name).value_or("1") == "1"; };
  if (is_one("PET_NNODES") && is_one("PET_NPROC_PER_NODE")) return read_no_rank(family, environment, read_file);
  const std::string variables = list_set(family, environment);
  return incomplete(variables,
                    fmt::format("this is a pod of a Kubeflow job ({}), whose processes a launcher must start; put "
                                "torchrun before the program, or `lockstep run` with a secret on every pod, which read "
                                "these, or unset them to run alone",
                                variables));
}

}  // namespace lockstep::rendezvous
