// SPDX-License-Identifier: Apache-2.0
// The facts that the hosts of a job exchange before any rank starts, and the plan that follows from them. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/placement/rank_map.h"

namespace lockstep::launcher {

// One host, as its agent, the launcher there, sees it.
struct HostFacts {
  int agent = 0;             // its agent's number at the job's store
  int node = -1;             // node rank; -1: the job's store gives one
  std::string name = {};     // host name
  int pid = 0;               // of its agent
  std::string build = {};    // base/plugin.h
  int least = 0;             // hosts of the job at least, as this host was told
  int nodes = 0;             // and at most
  int ranks = 0;             // that it starts
  std::string trace = {};    // its --trace
  int exit_code = 0;         // of `problem`
  std::string problem = {};  // why no rank can start there; empty: one can
};

// A record (base/record.h).
std::string encode(const HostFacts& facts);
// nullopt if the text is not one of encode().
std::optional<HostFacts> decode_host_facts(std::string_view text);

// The next step of all hosts.
struct JobPlan {
  // Why the ranks are not started: what all exit with, and a sentence for each host.
  int exit_code = 0;
  std::vector<std::string> problems = {};
  // Otherwise.
  std::string run_id = {};
  std::string master_addr = {};
  int master_port = 0;
  bool torch_store = false;
  int start = 0;       // which of the job's starts this is, from 0
  int next_word = 1;   // number of the first message that concerns it (agents.h)
  HostFacts job = {};  // of node rank 0: what another host must have in common with it (difference())
  std::vector<std::string> left_out = {};  // names of hosts that are part of no start any more
  RankMap hosts = {};                      // empty if they are not
};

std::string encode(const JobPlan& plan);
// CorruptData, with the store's key, if the text is not one of encode().
JobPlan decode_job_plan(std::string_view text, std::string_view key);

// The reason why two hosts can't be of one job: another build, another --nnodes. Empty: they can.
std::string difference(const HostFacts& host, const HostFacts& other);

// Fills in node ranks: as the hosts are ordered, and at a job's first start the one that a host was given itself.
void give_node_ranks(std::vector<HostFacts>& hosts, bool is_first);

// `draft` with the hosts of `facts`, which are all, by node rank; or with what keeps them from beginning.
JobPlan plan_job(JobPlan draft, std::span<const HostFacts> facts);
// For a start that has run out of time, `waited` as "5.0 s of 5.0 s allowed": how many came, who, and which node ranks
// are missing. `facts`: those who came. `lost`: hosts of the start before this one that have gone, as a text; node
// ranks are given anew at a later start, so that they name nobody.
JobPlan plan_without(std::span<const HostFacts> facts, int nodes, const std::string& waited,
                     const std::string& lost = {});

}  // namespace lockstep::launcher
