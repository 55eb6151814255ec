// SPDX-License-Identifier: Apache-2.0
// Facts that the hosts of a job exchange before any rank starts, and the plan that follows from them. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/placement/rank_map.h"

namespace lockstep::launcher {

// A host as its agent, the launcher on it, sees it.
struct HostFacts {
  int agent = 0;             // its agent's number at the job's store
  int node = -1;             // node rank; -1: the job's store assigns one
  std::string name = {};     // host name
  int pid = 0;               // pid of its agent
  std::string build = {};    // base/plugin.h
  int least = 0;             // the fewest hosts of the job, as this host was told
  int nodes = 0;             // the most hosts, likewise
  int ranks = 0;             // ranks that the host starts
  std::string trace = {};    // its --trace option
  int exit_code = 0;         // the exit code for `problem`
  std::string problem = {};  // reason why ranks can't start on it; empty: they can
};

// Returns a record (base/record.h).
std::string encode(const HostFacts& facts);
// Returns nullopt if the text was not made by encode().
std::optional<HostFacts> decode_host_facts(std::string_view text);

// The next step of all hosts: a start of the ranks, or the job's end.
struct JobPlan {
  // Reasons why the ranks are not started: the exit code of all hosts, and a sentence for each host.
  int exit_code = 0;
  std::vector<std::string> problems = {};
  // Parameters of a start.
  std::string run_id = {};
  std::string master_addr = {};
  int master_port = 0;
  bool torch_store = false;
  int start = 0;                           // number of this start, from 0
  HostFacts job = {};                      // facts of node rank 0, which other hosts must match (difference())
  std::vector<std::string> left_out = {};  // names of hosts that the job has excluded
  RankMap hosts = {};                      // empty if the ranks are not started

  bool is_made() const { return !hosts.empty() || !problems.empty(); }
};

std::string encode(const JobPlan& plan);
// Throws CorruptData, with the store's key, if the text was not made by encode().
JobPlan decode_job_plan(std::string_view text, std::string_view key);

// Returns the reason why two hosts can't be part of one job: another build, another --nnodes. Empty: they can.
std::string difference(const HostFacts& host, const HostFacts& other);

// Assigns node ranks in the order of the hosts; at a job's first start a host that was given a node rank keeps it.
void give_node_ranks(std::vector<HostFacts>& hosts, bool is_first);

// Returns `draft` with the hosts of `facts`, which are complete and ordered by node rank; or with the problems that
// keep them from beginning.
JobPlan plan_job(JobPlan draft, std::span<const HostFacts> facts);
// Returns the plan for a start that has run out of time, `waited` as "5.0 s of 5.0 s allowed". It says how many hosts
// came, which, and which node ranks are missing. `facts` are those of the hosts that came. `lost` lists hosts of the
// previous start that are gone, as a text; later starts assign node ranks anew, so these would name nobody.
JobPlan plan_without(std::span<const HostFacts> facts, int nodes, const std::string& waited,
                     const std::string& lost = {});

}  // namespace lockstep::launcher
