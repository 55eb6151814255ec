// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "launcher/base/amounts.h"
#include "launcher/base/exit_codes.h"
#include "launcher/flags/run_options.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/membership/member_info.h"

namespace lockstep::launcher {
namespace {

// The most characters of a name or a build that comes from another host.
constexpr std::size_t kMostPrinted = 255;

constexpr auto kFactsFields = [](auto& facts, auto& fields) {
  fields.kind("host 1");
  fields("agent", facts.agent, 0);
  fields("node", facts.node, -1);
  fields("name", facts.name);
  fields("pid", facts.pid, 0);
  fields("build", facts.build);
  fields("least", facts.least, 0);
  fields("nodes", facts.nodes, 0);
  fields("ranks", facts.ranks, 0);
  fields.optional("trace", facts.trace);  // that a host of an older build, which is to be named, doesn't have
  fields("exit-code", facts.exit_code, 0, 255);
  fields.rest("problem", facts.problem);
};

// A plan's lists, as texts.
struct PlanRecord {
  int exit_code = 0;
  std::string run_id = {};
  std::string master_addr = {};
  int master_port = 0;
  int torch_store = 0;
  int start = 0;
  int next_word = 1;
  std::string lists = {};
};

constexpr auto kPlanFields = [](auto& plan, auto& fields) {
  fields.kind("job plan 1");
  fields("exit-code", plan.exit_code, 0, 255);
  fields("run-id", plan.run_id);
  fields("master-addr", plan.master_addr);
  fields("master-port", plan.master_port, 0, 65535);
  fields("torch-store", plan.torch_store, 0, 1);
  fields("start", plan.start, 0);
  fields("next-word", plan.next_word, 1);
  fields.rest("lists", plan.lists);
};

std::string nnodes_of(const HostFacts& facts) {
  return facts.least == facts.nodes ? std::to_string(facts.nodes) : fmt::format("{}:{}", facts.least, facts.nodes);
}

std::string name_of(const HostFacts& facts) {
  return facts.node < 0 ? facts.name : fmt::format("{} (node rank {})", facts.name, facts.node);
}

}  // namespace

std::string encode(const HostFacts& facts) { return write_record(facts, kFactsFields); }

std::optional<HostFacts> decode_host_facts(std::string_view text) {
  auto facts = read_record<HostFacts>(text, kFactsFields);
  if (!facts) return std::nullopt;
  facts->name = printable(facts->name, kMostPrinted);
  facts->build = printable(facts->build, kMostPrinted);
  return facts;
}

std::string encode(const JobPlan& plan) {
  std::vector<std::string> hosts;
  for (const HostShare& host : plan.hosts) {
    hosts.push_back(host.name);
    hosts.push_back(std::to_string(host.ranks));
    hosts.push_back(std::to_string(host.agent));
  }
  return write_record(PlanRecord{.exit_code = plan.exit_code,
                                 .run_id = plan.run_id,
                                 .master_addr = plan.master_addr,
                                 .master_port = plan.master_port,
                                 .torch_store = plan.torch_store ? 1 : 0,
                                 .start = plan.start,
                                 .next_word = plan.next_word,
                                 .lists = write_texts(std::vector{write_texts(plan.problems), write_texts(hosts),
                                                                  encode(plan.job), write_texts(plan.left_out)})},
                      kPlanFields);
}

JobPlan decode_job_plan(std::string_view text, std::string_view key) {
  const auto problem = [&] { return CorruptData(fmt::format("store key '{}' holds no plan of a job", key)); };
  const auto record = read_record<PlanRecord>(text, kPlanFields);
  const auto lists = record ? read_texts(record->lists) : std::nullopt;
  if (!lists || lists->size() != 4) throw problem();
  const auto problems = read_texts((*lists)[0]);
  const auto hosts = read_texts((*lists)[1]);
  const auto job = decode_host_facts((*lists)[2]);
  const auto left_out = read_texts((*lists)[3]);
  if (!problems || !hosts || !job || !left_out || hosts->size() % 3 != 0) throw problem();
  JobPlan plan{.exit_code = record->exit_code,
               .problems = *problems,
               .run_id = record->run_id,
               .master_addr = record->master_addr,
               .master_port = record->master_port,
               .torch_store = record->torch_store == 1,
               .start = record->start,
               .next_word = record->next_word,
               .job = *job,
               .left_out = *left_out};
  for (std::size_t i = 0; i < hosts->size(); i += 3) {
    const auto ranks = parse_int((*hosts)[i + 1]);
    const auto agent = parse_int((*hosts)[i + 2]);
    if (!ranks || *ranks < 1 || *ranks > kMaxRanks || !agent || *agent < 0 || *agent > kMostAgents) throw problem();
    plan.hosts.push_back({.name = printable((*hosts)[i], kMostPrinted),
                          .ranks = static_cast<int>(*ranks),
                          .agent = static_cast<int>(*agent)});
  }
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
    draft.problems.push_back(fmt::format("the hosts have {} ranks together; a job has at most {}",
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
      "{} of {} came, {}: {}; missing: {}; start `lockstep run` there with the same --rdzv-endpoint, "
      "--rdzv-id and secret, correct --nnodes, or give --rdzv-timeout if they start later",
      facts.size(), count_of(nodes, "host"), waited, fmt::join(came, ", "),
      lost.empty() ? fmt::format("node rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", ")) : lost));
  for (const HostFacts& host : facts) {
    if (!host.problem.empty()) plan.problems.push_back(fmt::format("host {}: {}", name_of(host), host.problem));
  }
  return plan;
}

}  // namespace lockstep::launcher
