// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "launcher/base/amounts.h"
#include "launcher/base/exit_codes.h"
#include "launcher/flags/run_options.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/membership/member_info.h"

namespace lockstep::launcher {
namespace {

// The most characters of a name or a build that comes from another host.
constexpr std::size_t kMostPrinted = 255;

std::string sent(const std::string& name) { return name; }
std::string shown(std::string_view name) { return printable(name, kMostPrinted); }

constexpr auto kFactsFields = [](auto& facts, auto& fields) {
  fields.kind("host 1");
  fields("agent", facts.agent, 0);
  fields("node", facts.node, -1);
  fields("name", facts.name, sent, shown);
  fields("pid", facts.pid, 0);
  fields("build", facts.build, sent, shown);
  fields("least", facts.least, 0);
  fields("nodes", facts.nodes, 0);
  fields("ranks", facts.ranks, 0);
  fields.optional("trace", facts.trace);  // a host with an older build, which must be named, lacks the field
  fields("exit-code", facts.exit_code, 0, 255);
  fields.lines("problem", facts.problem);
};

constexpr auto kSlotsFields = [](auto& host, auto& fields) {
  fields("name", host.name, sent, shown);
  fields("ranks", host.ranks, 1, kMaxRanks);
  fields("agent", host.agent, 0, kMostAgents);
};

constexpr auto kPlanFields = [](auto& plan, auto& fields) {
  fields.kind("job plan");
  fields("exit-code", plan.exit_code, 0, 255);
  fields("run-id", plan.run_id);
  fields("master-addr", plan.master_addr);
  fields("master-port", plan.master_port, 0, 65535);
  fields("torch-store", plan.torch_store);
  fields("start", plan.start, 0);
  fields.list("problems", plan.problems);
  fields.list("hosts", plan.hosts, kSlotsFields);
  fields.record("job", plan.job, kFactsFields);
  fields.list("left-out", plan.left_out);
};

std::string nnodes_of(const HostFacts& facts) {
  return facts.least == facts.nodes ? std::to_string(facts.nodes) : fmt::format("{}:{}", facts.least, facts.nodes);
}

std::string name_of(const HostFacts& facts) {
  return facts.node < 0 ? facts.name : fmt::format("{} (node rank {})", facts.name, facts.node);
}

}  // namespace

std::string encode(const HostFacts& facts) { return write_record(facts, kFactsFields); }

std::optional<HostFacts> decode_host_facts(std::string_view text) { return read_record<HostFacts>(text, kFactsFields); }

std::string encode(const JobPlan& plan) { return write_record(plan, kPlanFields); }

JobPlan decode_job_plan(std::string_view text, std::string_view key) {
  auto plan = require_record<JobPlan>(text, kPlanFields, fmt::format("store key '{}', the plan of a job", key));
  plan.hosts = with_first_ranks(std::move(plan.hosts));
  return plan;
}

std::string difference(const HostFacts& host, const HostFacts& other) {
  if (host.build != other.build) {
    return fmt::format("host {} has another lockstep than host {}: '{}' and '{}'; install the same build on both",
                       name_of(host), name_of(other), host.build, other.build);
  }
  if (host.nodes == other.nodes && host.least == other.least) return {};
  return fmt::format("host {} was told --nnodes {}, host {} --nnodes {}; give both the same", name_of(host),
                     nnodes_of(host), name_of(other), nnodes_of(other));
}

void give_node_ranks(std::vector<HostFacts>& hosts, bool is_first) {
  std::set<int> given;
  if (is_first) {
    for (const HostFacts& host : hosts) given.insert(host.node);
  }
  for (int next = 0; HostFacts & host : hosts) {
    if (is_first && host.node >= 0) continue;
    while (given.contains(next)) ++next;
    host.node = next++;
  }
  if (!is_first) return;
  std::ranges::stable_sort(hosts, {}, &HostFacts::node);
}

JobPlan plan_job(JobPlan draft, std::span<const HostFacts> facts) {
  const HostFacts& first = facts.front();
  const HostFacts* before = nullptr;
  for (const HostFacts& host : facts) {
    if (const std::string other = difference(host, first); !other.empty()) {
      draft.problems.push_back(other);
      if (draft.exit_code == 0) draft.exit_code = kExitUsage;
    }
    if (!host.problem.empty()) {
      draft.problems.push_back(fmt::format("host {}: {}", name_of(host), host.problem));
      if (draft.exit_code == 0) draft.exit_code = host.exit_code;
    }
    if (before != nullptr && host.node == before->node) {
      draft.problems.push_back(fmt::format(
          "host {} and host {} have the same node rank; give each host its own --node-rank, or none of them",
          name_of(*before), name_of(host)));
      if (draft.exit_code == 0) draft.exit_code = kExitUsage;
    }
    before = &host;
    draft.hosts.push_back({.name = host.name, .ranks = host.ranks, .agent = host.agent});
  }
  draft.hosts = with_first_ranks(std::move(draft.hosts));
  if (draft.exit_code == 0 && world_size(draft.hosts) > membership::kMaxWorldSize) {
    draft.exit_code = kExitUsage;
    draft.problems.push_back(
        fmt::format("the hosts have {} ranks together, but a job may have at most {}: start fewer ranks",
                    world_size(draft.hosts), membership::kMaxWorldSize));
  }
  if (draft.exit_code != 0) draft.hosts.clear();
  return draft;
}

JobPlan plan_without(std::span<const HostFacts> facts, int nodes, const std::string& waited, const std::string& lost) {
  std::vector<int> missing;
  for (int node = 0; node < nodes; ++node) {
    const auto is_it = [node](const HostFacts& host) { return host.node == node; };
    if (std::none_of(facts.begin(), facts.end(), is_it)) missing.push_back(node);
  }
  std::vector<std::string> came;
  for (const HostFacts& host : facts) came.push_back("host " + (lost.empty() ? name_of(host) : host.name));
  JobPlan plan{.exit_code = kExitInternal};
  plan.problems.push_back(fmt::format(
      "{} of {} came, {}: {}; missing: {}; start `lockstep run` on the missing hosts with the same --rdzv-endpoint, "
      "--rdzv-id and secret, correct --nnodes, or give --rdzv-timeout if they start later",
      facts.size(), count_of(nodes, "host"), waited, fmt::join(came, ", "),
      lost.empty() ? fmt::format("node rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", ")) : lost));
  for (const HostFacts& host : facts) {
    if (!host.problem.empty()) plan.problems.push_back(fmt::format("host {}: {}", name_of(host), host.problem));
  }
  return plan;
}

}  // namespace lockstep::launcher
