// SPDX-License-Identifier: Apache-2.0
// Job schedulers: their tasks are ranks, or launchers of another family.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <vector>

#include "runtime/rendezvous/identity/family_readers.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/identity/slurm_lists.h"

namespace lockstep::rendezvous {
namespace {

using Verdict = Reading::Verdict;

// Slurm numbers from here what is not a step of srun: the batch script, the shell of salloc.
constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> result;
  constexpr std::string_view kSpace = " \t\r\n";
  for (auto begin = text.find_first_not_of(kSpace); begin != std::string_view::npos;) {
    const auto end = std::min(text.find_first_of(kSpace, begin), text.size());
    result.emplace_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kSpace, end);
  }
  return result;
}

// LSF lists a host once for each slot, the one that runs the job script first. If that one is not a compute host, it is
// there once, and the others more often.
std::string first_compute_host(const std::vector<std::string>& hosts) {
  if (hosts.empty()) return {};
  const auto times = [&](const std::string& host) { return std::count(hosts.begin(), hosts.end(), host); };
  if (times(hosts[0]) > 1) return hosts[0];
  const auto next =
      std::find_if(hosts.begin() + 1, hosts.end(), [&](const std::string& host) { return times(host) > 1; });
  return next == hosts.end() ? hosts[0] : *next;
}

}  // namespace

MaybeReading read_pals(const Environment& environment, const FileReader&) {
  if (!environment.has("PALS_RANKID")) return std::nullopt;
  Reading reading = read_world(environment, "PALS", "PALS_RANKID", "PMI_SIZE",
                               list_set(environment, {"PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE",
                                                      "PALS_NODEID", "PALS_APID"}),
                               kByHand,
                               {first_set(environment, {"PALS_LOCAL_RANKID", "PMI_LOCAL_RANK", "MPI_LOCALRANKID"}),
                                first_set(environment, {"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"})});
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  identity.node_rank = get_bounded(environment, "PALS_NODEID", 0, identity.world_size - 1);
  name_job(identity, "pals", environment.get("PALS_APID").value_or(""));
  read_pmix_server(environment, identity);
  return reading;
}

MaybeReading read_jsrun(const Environment& environment, const FileReader& read_file) {
  constexpr std::string_view kRank = "JSM_NAMESPACE_RANK";
  constexpr std::string_view kSize = "JSM_NAMESPACE_SIZE";
  if (!environment.has(kRank) && !environment.has(kSize)) return std::nullopt;
  Reading reading = read_world(
      environment, "jsrun", kRank, kSize,
      list_set(environment, {kRank, kSize, "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE", "LSB_JOBID"}),
      kByHand, {"JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"});
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  // One job may run jsrun more than once.
  const auto job =
      fmt::format("{}/{}", environment.get("LSB_JOBID").value_or(""), environment.get("PMIX_NAMESPACE").value_or(""));
  if (job != "/") name_job(identity, "jsrun", job);
  read_pmix_server(environment, identity);
  const auto rank_file = environment.get("LSB_DJOB_RANKFILE");
  const auto listed = rank_file ? read_file(*rank_file) : std::nullopt;
  stand_in_for_master(identity, first_compute_host(words(listed ? *listed : environment.get("LSB_HOSTS").value_or(""))),
                      port_of_job("jsrun/" + job), listed ? "LSB_DJOB_RANKFILE" : "LSB_HOSTS");
  return reading;
}

MaybeReading read_flux(const Environment& environment, const FileReader&) {
  if (!environment.has("FLUX_TASK_RANK")) return std::nullopt;  // a shell of Flux has others
  Reading reading = read_world(environment, "Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE",
                               list_set(environment, {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID",
                                                      "FLUX_JOB_NNODES", "FLUX_JOB_ID"}),
                               kByHand, {"FLUX_TASK_LOCAL_ID", {}});
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  if (environment.get("FLUX_JOB_NNODES") == "1") {
    identity.local_world_size = identity.world_size;
    identity.local_world_size_known = true;
  }
  name_job(identity, "flux", environment.get("FLUX_JOB_ID").value_or(""));
  read_pmix_server(environment, identity);
  return reading;
}

// SLURM_LAUNCH_NODE_IPADDR is where srun was typed, perhaps a login node, and is not read.
MaybeReading read_slurm(const Environment& environment, const FileReader&) {
  if (!environment.has("SLURM_PROCID") && !environment.has("SLURM_JOB_ID")) return std::nullopt;
  const auto size_name = first_set(environment, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  const std::string variables =
      list_set(environment, {"SLURM_PROCID", size_name, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID",
                             "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID"});
  // A batch script has SLURM_PROCID=0 and SLURM_NTASKS too, and the shell of salloc a step of one task: a process that
  // these start is not a task of srun.
  const auto step = environment.get_int("SLURM_STEP_ID");
  if (!step || *step >= kFirstSpecialStep || !environment.has("SLURM_PROCID")) {
    Reading reading;
    reading.variables = variables;
    reading.verdict = Verdict::no_rank;
    return reading;
  }
  Reading reading = read_world(environment, "srun", "SLURM_PROCID",
                               size_name.empty() ? "SLURM_STEP_NUM_TASKS" : size_name, variables, kByHand);
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  const auto local_rank = get_bounded(environment, "SLURM_LOCALID", 0, identity.world_size - 1);
  identity.node_rank = get_bounded(environment, "SLURM_NODEID", 0, INT_MAX);
  // SLURM_NTASKS_PER_NODE is the request, not the result. Numbers that stay open here are found out when the ranks
  // meet.
  const auto tasks =
      tasks_on_node(environment.get("SLURM_STEP_TASKS_PER_NODE").value_or(""), identity.node_rank.value_or(-1));
  identity.local_rank_known = local_rank.has_value();
  identity.local_rank = local_rank.value_or(0);
  if (tasks && *tasks <= identity.world_size && identity.local_rank < *tasks) {
    identity.local_world_size = *tasks;
    identity.local_world_size_known = true;
  }
  const std::string job = fmt::format("{}.{}", environment.get("SLURM_JOB_ID").value_or(""), *step);
  name_job(identity, "srun", job);
  identity.restart_count = get_bounded(environment, "SLURM_RESTART_COUNT", 0, INT_MAX).value_or(0);
  read_pmix_server(environment, identity);
  const auto nodes = first_set(environment, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  stand_in_for_master(identity, first_host(environment.get(nodes).value_or("")).value_or(""),
                      port_of_job("srun/" + job), fmt::format("{} and a port of step {}", nodes, job));
  return reading;
}

}  // namespace lockstep::rendezvous
