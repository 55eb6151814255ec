// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement/contract.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "launcher/placement/shared_gpu.h"

namespace lockstep::launcher {
namespace {

// Returns true for variables of an outer launcher about this process, which is not a rank of that job any more but the
// launcher of its own. With torchrun's, torch in a rank would look for that agent's store on this job's MASTER_PORT;
// with mpirun's, MPI would see every rank as the same one; the secret and the relay belong to another store. A
// scheduler's variables about its task (Slurm, Flux) remain valid.
bool belongs_to_an_outer_job(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {"TORCHELASTIC_",
                                            "OMPI_COMM_WORLD_",
                                            "PMIX_",
                                            "PMI_",
                                            "MPI_LOCAL",
                                            "MV2_COMM_WORLD_",
                                            "HOROVOD_RANK",
                                            "HOROVOD_SIZE",
                                            "HOROVOD_LOCAL_",
                                            "HOROVOD_CROSS_",
                                            "MLX_RANK",
                                            "MLX_WORLD_SIZE",
                                            "CROSS_",
                                            "LOCKSTEP_STORE_SECRET",
                                            "LOCKSTEP_MEMBERSHIP"};
  constexpr std::string_view kNames[] = {"GROUP_WORLD_SIZE", "ROLE_RANK",        "ROLE_WORLD_SIZE",   "ROLE_NAME",
                                         "LOCAL_SIZE",       "REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS"};
  return std::ranges::any_of(kPrefixes, [&](auto prefix) { return name.starts_with(prefix); }) ||
         std::ranges::find(kNames, name) != std::end(kNames);
}

}  // namespace

std::vector<std::string> rank_environment(const Environment& inherited, const Contract& contract, int local_rank) {
  Environment result;
  for (const auto& [name, value] : inherited.variables()) {
    if (!belongs_to_an_outer_job(name)) result.set(name, value);
  }
  const auto number = [](int value) { return fmt::format("{}", value); };
  const int rank = contract.own().first_rank + local_rank;
  result.set("RANK", number(rank));
  result.set("WORLD_SIZE", number(world_size(contract.hosts)));
  result.set("LOCAL_RANK", number(local_rank));
  result.set("LOCAL_WORLD_SIZE", number(contract.own().ranks));
  result.set("GROUP_RANK", number(contract.node_rank));
  result.set("GROUP_WORLD_SIZE", number(static_cast<int>(contract.hosts.size())));
  if (contract.hosts.size() > 1) result.set("NODE_RANK", number(contract.node_rank));
  // The others of torchrun, for scripts. Torch itself looks for a store of the agent's only if that is said below.
  result.set("ROLE_RANK", number(rank));
  result.set("ROLE_WORLD_SIZE", number(world_size(contract.hosts)));
  result.set("ROLE_NAME", "default");
  result.set("TORCHELASTIC_RUN_ID", contract.run_id);
  result.set("TORCHELASTIC_RESTART_COUNT", number(contract.restarts));
  result.set("TORCHELASTIC_MAX_RESTARTS", number(contract.most_restarts));
  result.set("MASTER_ADDR", contract.master_addr);
  result.set("MASTER_PORT", number(contract.master_port));
  result.set("LOCKSTEP_STORE", contract.store_address);
  if (!contract.relay_address.empty()) result.set("LOCKSTEP_MEMBERSHIP", contract.relay_address);
  if (contract.store_secret) result.set("LOCKSTEP_STORE_SECRET", contract.store_secret->hex());
  result.set("LOCKSTEP_RUN_ID", contract.run_id);
  result.set("LOCKSTEP_RESTART_COUNT", number(contract.restarts));
  result.set("LOCKSTEP_LAUNCHER_PID", number(contract.launcher_pid));
  result.set("LOCKSTEP_LAUNCHER_FD", contract.launcher_fd);
  // As a torchrun agent does: rank 0 need not host a store.
  if (contract.torch_store) result.set("TORCHELASTIC_USE_AGENT_STORE", "True");
  if (!contract.trace_dir.empty()) result.set("LOCKSTEP_TRACE_DIR", contract.trace_dir);
  if (contract.visible_devices) result.set("CUDA_VISIBLE_DEVICES", *contract.visible_devices);
  if (!contract.bindings.empty()) {
    const auto& binding = contract.bindings[static_cast<std::size_t>(local_rank)];
    if (!result.has("OMP_NUM_THREADS")) result.set("OMP_NUM_THREADS", number(binding.cores));
    // GNU's OpenMP would take the rank to the first of them, wherever it is bound.
    if (result.has("GOMP_CPU_AFFINITY")) result.set("GOMP_CPU_AFFINITY", describe_processors(binding.processors));
  }
  if (contract.share_gpus) {
    for (const auto& [name, value] : shared_gpu_environment(contract.run_id, rank)) {
      if (!is_left_to_user(name) || !result.variables().contains(name)) result.set(name, value);
    }
  }

  std::vector<std::string> entries;
  for (const auto& [name, value] : result.variables()) entries.push_back(name + "=" + value);
  return entries;
}

}  // namespace lockstep::launcher
