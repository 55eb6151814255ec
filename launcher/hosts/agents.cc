// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/agents.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <utility>

#include "launcher/command_line.h"
#include "launcher/run/job_report.h"
#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::launcher {
namespace {

using namespace std::chrono_literals;
using membership::MemberEvent;

constexpr const char* kPlan = "agents/plan";
constexpr const char* kNext = "agents/next";    // node ranks that the store has given
constexpr const char* kCount = "agents/count";  // numbers of messages to node rank 0 that are taken
// How long the others wait for node rank 0's plan after their own time is over: it names who did not come.
constexpr auto kPlanFollows = 10s;
// Between two looks for what may end a wait.
constexpr auto kLook = 200ms;

std::string facts_key(int node) { return fmt::format("agents/host/{}", node); }
std::string up_key(std::int64_t number) { return fmt::format("agents/up/{}", number); }
std::string down_key(std::int64_t number) { return fmt::format("agents/down/{}", number); }

}  // namespace

Agents::Agents(Options options, WakingQueue<AgentNews>& news)
    : options_(std::move(options)),
      news_(news),
      store_(options_.endpoint, options_.deadline),
      inbox_(options_.endpoint, options_.deadline) {
  take_node_rank();
  if (options_.serves) return;
  membership::LivenessOptions liveness;
  liveness.detect_silence = options_.detect_silence;
  // Before the others can see that this host has come: from here on its end is noticed.
  try {
    link_ = std::make_unique<membership::MemberLink>(
        options_.endpoint, kAgentScope,
        membership::MemberInfo{
            .rank = node_rank_, .world_size = options_.nodes, .process = membership::ProcessInfo::of_this_process()},
        liveness, membership::MemberCalls{.on_event = [this](const MemberEvent& event) { on_event(event); }},
        options_.deadline);
  } catch (const StoreError& error) {
    throw StoreError(fmt::format("node rank {} of --nnodes {}: {}; give each host its own --node-rank, or none of them",
                                 node_rank_, options_.nodes, error.what()));
  }
}

Agents::~Agents() {
  leaving_ = true;
  inbox_.stop_waiting();
  if (reader_.joinable()) reader_.join();
  link_.reset();
}

void Agents::take_node_rank() {
  if (options_.serves) return;
  node_rank_ = options_.node_rank ? *options_.node_rank : static_cast<int>(store_.add(kNext, 1));
  if (node_rank_ < options_.nodes) return;
  std::vector<std::string> names;
  for (const HostFacts& host : hosts_here()) names.push_back(host.name);
  throw StoreError(fmt::format("the job has its {} already ({}): this host would be one more; correct --nnodes",
                               count_of(options_.nodes, "host"), fmt::join(names, ", ")));
}

std::vector<HostFacts> Agents::hosts_here() {
  std::vector<HostFacts> here;
  for (int node = 0; node < options_.nodes; ++node) {
    const std::vector<std::string> key = {facts_key(node)};
    if (store_.check(key))
      here.push_back(decode_host_facts(store_.get(key.front(), Deadline::after(kLook)), key.front()));
  }
  return here;
}

JobPlan Agents::meet(HostFacts own, JobPlan draft) {
  own.node = node_rank_;
  store_.set(facts_key(node_rank_), encode(own));
  if (!options_.serves) {
    return decode_job_plan(store_.get(kPlan, Deadline::after(options_.deadline.remaining() + kPlanFollows)), kPlan);
  }
  const JobPlan plan = await_hosts(std::move(draft));
  store_.set(kPlan, encode(plan));
  return plan;
}

JobPlan Agents::await_hosts(JobPlan draft) {
  std::vector<std::string> keys;
  for (int node = 0; node < options_.nodes; ++node) keys.push_back(facts_key(node));
  while (true) {
    try {
      const auto texts = store_.multi_get(keys, options_.deadline.sooner(kLook));
      std::vector<HostFacts> facts;
      for (std::size_t i = 0; i < texts.size(); ++i) facts.push_back(decode_host_facts(texts[i], keys[i]));
      return plan_job(std::move(draft), facts);
    } catch (const Timeout&) {
      if (options_.deadline.expired()) return plan_without(hosts_here(), options_.nodes, options_.deadline.progress());
    }
    for (const AgentNews& news : news_.take()) {
      const auto* member = std::get_if<membership::MemberNews>(&news);
      if (member == nullptr || member->scope != kAgentScope || !member->cause) continue;
      return {.exit_code = kExitInternal,
              .problems = {fmt::format("host {} (node rank {}) went before all hosts had come: its launcher (pid {}) "
                                       "has ended or does not answer; look for its output there",
                                       member->cause->host, member->cause->rank, member->cause->pid)}};
    }
  }
}

void Agents::on_event(const MemberEvent& event) {
  if (event.kind != MemberEvent::Kind::store_lost && event.kind != MemberEvent::Kind::store_silent) return;
  const std::string who = event.host ? fmt::format(" (pid {})", event.host->pid) : "";
  news_.put(StoreGone{fmt::format("its launcher{} {}", who,
                                  event.kind == MemberEvent::Kind::store_lost ? "has ended" : "does not answer")});
  store_.give_up();
  inbox_.give_up();
}

void Agents::start() {
  reader_ = start_quiet_thread([this] {
    try {
      if (options_.serves) {
        read_others();
      } else {
        read_first();
      }
    } catch (const Error& error) {
      if (leaving_) return;
      log_debug("agents: {}", error.what());
      news_.put(StoreGone{"its launcher has ended"});
    }
  });
}

void Agents::pass_on(const std::string& key, std::string_view text) {
  auto message = decode_agent_message(text);
  if (!message) throw CorruptData(fmt::format("store key '{}' holds no message of an agent", key));
  news_.put(std::move(*message));
}

// A number is taken before its message is there. An agent that ends in between leaves a gap, for which the messages
// behind it don't wait; one that has only been stopped fills it later.
void Agents::read_others() {
  std::set<std::int64_t> gaps;
  for (std::int64_t next = 1; !leaving_;) {
    const std::string key = up_key(next);
    std::optional<std::string> text;
    try {
      text = inbox_.get(key, Deadline::after(kLook));
      inbox_.erase(key);
      ++next;
    } catch (const Timeout&) {
      if (!leaving_ && store_.add(kCount, 0) > next) gaps.insert(next++);
    }
    // Before `text`, which may be a later message of the same agent.
    std::erase_if(gaps, [this](std::int64_t gap) {
      const std::vector<std::string> late = {up_key(gap)};
      if (!inbox_.check(late)) return false;
      pass_on(late.front(), inbox_.get(late.front(), Deadline::after(kLook)));
      return true;
    });
    if (text) pass_on(key, *text);
  }
}

void Agents::read_first() {
  for (std::int64_t next = 1; !leaving_; ++next) {
    const std::string key = down_key(next);
    pass_on(key, inbox_.get(key, Deadline::never()));
  }
}

void Agents::send(const AgentMessage& message) {
  try {
    if (options_.serves) {
      store_.set(down_key(++sent_), encode(message));
    } else {
      store_.set(up_key(store_.add(kCount, 1)), encode(message));
    }
  } catch (const StoreError& error) {
    log_debug("agents: {}", error.what());
    news_.put(StoreGone{"its launcher has ended"});
  }
}

}  // namespace lockstep::launcher
