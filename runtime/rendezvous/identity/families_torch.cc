// SPDX-License-Identifier: Apache-2.0
// RANK and WORLD_SIZE, by hand and from launchers that speak like torchrun.
#include <fmt/format.h>

#include <climits>

#include "runtime/rendezvous/identity/family_readers.h"

namespace lockstep::rendezvous {
namespace {

using Verdict = Reading::Verdict;

std::string variables_of(const Environment& environment) {
  return list_set(environment,
                  {"LOCKSTEP_STORE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK",
                   "CROSS_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "REPLICA_GROUP_ID"});
}

// RANK and WORLD_SIZE as torchrun sets them, which `lockstep run` sets too, with DeepSpeed's names for the local ones.
Reading read_contract(const Environment& environment, std::string_view source) {
  Reading reading = read_world(environment, source, "RANK", "WORLD_SIZE", variables_of(environment), kByHand,
                               {"LOCAL_RANK", first_set(environment, {"LOCAL_WORLD_SIZE", "LOCAL_SIZE"})});
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  identity.node_rank =
      get_bounded(environment, first_set(environment, {"GROUP_RANK", "CROSS_RANK"}), 0, identity.world_size - 1);
  return reading;
}

bool has_contract(const Environment& environment) { return environment.has("RANK") || environment.has("WORLD_SIZE"); }

// Kubeflow's PyTorchJob gives each pod a RANK, and its WORLD_SIZE counts processes.
void refuse_the_rank_of_a_pod(const Environment& environment, Reading& reading) {
  const auto per_pod = environment.get("PET_NPROC_PER_NODE");
  if (!per_pod || *per_pod == "1" || environment.has("LOCAL_RANK") || reading.verdict != Verdict::rank) return;
  reading.verdict = Verdict::incomplete;
  reading.problem = fmt::format(
      "PET_NPROC_PER_NODE={} says that RANK={} is a pod's, not a process's; start the processes of this pod with "
      "`lockstep run` or torchrun, or set LOCAL_RANK if RANK is a process's",
      *per_pod, reading.identity.rank);
}

}  // namespace

MaybeReading read_lockstep_run(const Environment& environment, const FileReader&) {
  if (!environment.has("LOCKSTEP_STORE") || !has_contract(environment)) return std::nullopt;
  return read_contract(environment, "lockstep run");
}

MaybeReading read_torchrun(const Environment& environment, const FileReader&) {
  const auto run_id = environment.get("TORCHELASTIC_RUN_ID");
  const bool deepspeed = environment.has("CROSS_RANK") && environment.has("LOCAL_SIZE");
  if (environment.has("LOCKSTEP_STORE") || !has_contract(environment) || (!run_id && !deepspeed)) return std::nullopt;
  // torchft runs one torchrun per replica group: RANK and WORLD_SIZE count within the group, and so does the run.
  const auto replica = environment.get("REPLICA_GROUP_ID");
  const bool torchft = replica && environment.has("TORCHFT_LIGHTHOUSE");
  Reading reading = read_contract(environment, torchft  ? fmt::format("torchrun, torchft's replica group {}", *replica)
                                               : run_id ? "torchrun"
                                                        : "DeepSpeed's launcher");
  Identity& identity = reading.identity;
  identity.run_id = run_id.value_or("");
  if (torchft) identity.run_id += fmt::format("/replica {}", *replica);
  identity.restart_count = get_bounded(environment, "TORCHELASTIC_RESTART_COUNT", 0, INT_MAX).value_or(0);
  identity.agent_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return reading;
}

MaybeReading read_by_hand(const Environment& environment, const FileReader& read_file) {
  if (environment.has("LOCKSTEP_STORE") || !has_contract(environment)) return std::nullopt;
  if (read_torchrun(environment, read_file)) return std::nullopt;
  Reading reading = read_contract(environment, "RANK and WORLD_SIZE");
  Identity& identity = reading.identity;
  identity.restart_count = get_bounded(environment, "TORCHELASTIC_RESTART_COUNT", 0, INT_MAX).value_or(0);
  identity.agent_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True";
  refuse_the_rank_of_a_pod(environment, reading);
  return reading;
}

// The trainer pods of Kubeflow have variables that torchrun takes for its flags.
MaybeReading read_kubeflow_pod(const Environment& environment, const FileReader&) {
  if (has_contract(environment)) return std::nullopt;
  Reading reading;
  reading.variables = list_set(environment, {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR",
                                             "PET_MASTER_PORT", "PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND"});
  if (reading.variables.empty()) return std::nullopt;
  const bool one =
      environment.get("PET_NNODES").value_or("1") == "1" && environment.get("PET_NPROC_PER_NODE").value_or("1") == "1";
  reading.verdict = one ? Verdict::no_rank : Verdict::incomplete;
  reading.problem = fmt::format(
      "this is a pod of a Kubeflow job ({}), whose processes a launcher must start; put torchrun before the program, "
      "or `lockstep run` with a secret on every pod, which read these, or unset them to run alone",
      reading.variables);
  return reading;
}

}  // namespace lockstep::rendezvous
