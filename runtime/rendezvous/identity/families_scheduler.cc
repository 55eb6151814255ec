// SPDX-License-Identifier: Apache-2.0
// Job schedulers: their tasks are ranks, or launchers of another family.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <iterator>
#include <sstream>
#include <vector>

#include "runtime/rendezvous/identity/family_readers.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/identity/slurm_lists.h"

namespace lockstep::rendezvous {
namespace {

using Verdict = Reading::Verdict;

// Slurm numbers from here what is not a step of srun: the batch script, the shell of salloc.
constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;

// LSF lists a host once for each slot, the one that runs the job script first. If that one is not a compute host, it is
// there once, and the others more often.
std::string first_compute_host(const std::string& list) {
  std::istringstream words(list);
  const std::vector<std::string> hosts{std::istream_iterator<std::string>(words), {}};
  const auto found = std::ranges::find_if(hosts, [&](auto& host) { return std::ranges::count(hosts, host) > 1; });
  if (found != hosts.end()) return *found;
  return hosts.empty() ? "" : hosts.front();
}

}  // namespace

Reading read_jsrun(const Family& family, const Environment& environment, const FileReader& read_file) {
  Reading reading = read_world(family, environment, read_file);
  if (reading.verdict != Verdict::rank) return reading;
  // One job may run jsrun more than once.
  const auto job =
      fmt::format("{}/{}", environment.get("LSB_JOBID").value_or(""), environment.get("PMIX_NAMESPACE").value_or(""));
  if (job != "/") name_job(reading.identity, family, job);
  const auto rank_file = environment.get("LSB_DJOB_RANKFILE");
  const auto listed = rank_file ? read_file(*rank_file) : std::nullopt;
  const auto hosts = listed ? *listed : environment.get("LSB_HOSTS").value_or("");
  stand_in_for_master(reading.identity, first_compute_host(hosts), port_of_job("jsrun/" + job),
                      listed ? "LSB_DJOB_RANKFILE" : "LSB_HOSTS");
  return reading;
}

Reading read_flux(const Family& family, const Environment& environment, const FileReader& read_file) {
  Reading reading = read_world(family, environment, read_file);
  if (environment.get("FLUX_JOB_NNODES") == "1") {
    reading.identity.local_world_size = reading.identity.world_size;
    reading.identity.local_world_size_known = true;
  }
  return reading;
}

// SLURM_LAUNCH_NODE_IPADDR is where srun was typed, perhaps a login node, and is not read.
Reading read_slurm(const Family& family, const Environment& environment, const FileReader& read_file) {
  // A batch script has SLURM_PROCID=0 and SLURM_NTASKS too, and the shell of salloc a step of one task: a process that
  // these start is not a task of srun.
  const auto step = environment.get_int("SLURM_STEP_ID");
  const bool is_task = step && *step < kFirstSpecialStep && environment.has("SLURM_PROCID");
  if (!is_task) return read_no_rank(family, environment, read_file);
  Reading reading = read_world(family, environment, read_file);
  if (reading.verdict != Verdict::rank) return reading;
  Identity& identity = reading.identity;
  identity.node_rank = get_bounded(environment, "SLURM_NODEID", 0, INT_MAX);
  // Numbers that stay open here are found out when the ranks meet.
  const auto tasks =
      tasks_on_node(environment.get("SLURM_STEP_TASKS_PER_NODE").value_or(""), identity.node_rank.value_or(-1));
  if (tasks && *tasks <= identity.world_size && identity.local_rank < *tasks) {
    identity.local_world_size = *tasks;
    identity.local_world_size_known = true;
  }
  const std::string job = fmt::format("{}.{}", environment.get("SLURM_JOB_ID").value_or(""), *step);
  name_job(identity, family, job);
  const auto nodes = first_set(environment, "SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_NODELIST");
  stand_in_for_master(identity, first_host(environment.get(nodes).value_or("")).value_or(""),
                      port_of_job("srun/" + job), fmt::format("{} and a port of step {}", nodes, job));
  return reading;
}

}  // namespace lockstep::rendezvous
