// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/several_hosts.h"

#include <fmt/format.h>

#include <numeric>
#include <optional>
#include <utility>

#include "launcher/base/exit_codes.h"
#include "launcher/base/signals.h"
#include "launcher/base/system.h"
#include "launcher/hosts/agent_control.h"
#include "launcher/hosts/agent_input.h"
#include "launcher/hosts/join_job.h"
#include "launcher/run/host_parts.h"
#include "launcher/verdict/verdict_record.h"
#include "lockstep/base/error.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/host.h"
#include "runtime/job/exit_code.h"
#include "runtime/job/stop_signals.h"
#include "runtime/rendezvous/join.h"

namespace lockstep::launcher {
namespace {

// Time in which node rank 0 waits for the others' connections to end, before it ends the store.
constexpr std::chrono::seconds kOthersLeave{5};

std::string describe_start(const JobPlan& plan, int node_rank) {
  const HostSlots& own = plan.hosts[static_cast<std::size_t>(node_rank)];
  std::vector<int> ranks(static_cast<std::size_t>(own.ranks));
  std::iota(ranks.begin(), ranks.end(), own.first_rank);
  return fmt::format("{} (node rank {} of {}): {} of {}{}", own.name, node_rank, plan.hosts.size(),
                     rendezvous::describe_ranks(ranks), world_size(plan.hosts),
                     plan.start == 0 ? "" : fmt::format(", start {}", plan.start + 1));
}

// This host's launcher, from joining the job's store to the end of the job.
class HostOfSeveral {
 public:
  HostOfSeveral(RunOptions options, const Environment& environment, AgentInput* input);

  int run();

 private:
  void join();
  JobPlan meet();
  StartOutcome start_ranks(const JobPlan& plan);
  std::unique_ptr<JobControl> control(const JobPlan& plan, const std::string& scope,
                                      std::function<RankFacts(int rank)> facts);
  bool joins_again();
  int say_store_is_gone(const std::string& how);
  void correct_verdict(const JobPlan& end);

  RunOptions options_;
  const Environment& environment_;
  AgentInput* input_;
  int requeue_exit_code_;
  JobOptions job_options_{.keep_last_lines = true};
  HostParts parts_;
  WakingQueue<AgentNews> news_;
  std::unique_ptr<RunStores> stores_;
  std::unique_ptr<AgentLink> agents_;
  Preparation preparation_;
  RestartPolicy restarts_;
  int starts_ = 0;         // number of starts of this host
  int awaited_after_ = 0;  // the start whose verdict, written here, says that another one follows; 0: none
};

HostOfSeveral::HostOfSeveral(RunOptions options, const Environment& environment, AgentInput* input)
    : options_(std::move(options)),
      environment_(environment),
      input_(input),
      requeue_exit_code_(requeue_exit_code(environment)),
      restarts_(options_.max_restarts, options_.hosts_may_change()) {
  job_options_.contract = contract_of(options_);
  job_options_.contract.store_secret = input != nullptr ? input->secret() : secret_of(options_, environment);
  job_options_.reads_input = input == nullptr;
  if (input != nullptr) input->watch(stop_timeout(environment));
}

int HostOfSeveral::run() {
  int code = 0;
  std::chrono::nanoseconds others_leave = kOthersLeave;
  while (true) {
    JobPlan plan;
    try {
      plan = meet();
    } catch (const StoreError& error) {
      if (starts_ == 0) throw;
      if (joins_again()) continue;
      code = say_store_is_gone(error.what());
      break;
    }
    code = plan.exit_code;
    const bool speaks = input_ == nullptr || agents_->node_rank() == 0;
    for (const auto& problem : plan.problems) {
      if (speaks) parts_.console.message(problem);
    }
    if (plan.hosts.empty()) {
      correct_verdict(plan);
      break;
    }
    const StartOutcome outcome = start_ranks(plan);
    code = outcome.exit_code;
    if (outcome.is_hurried) others_leave = options_.grace;
    if (!outcome.again || (agents_->is_cut_off() && !joins_again())) {
      agents_->cancel_next_start({.exit_code = code, .problems = {fmt::format("the job is over; exit code {}", code)}});
      break;
    }
    awaited_after_ = agents_ && agents_->node_rank() == 0 ? plan.start + 1 : 0;
    const auto pause = outcome.again.value_or(std::chrono::milliseconds(0));
    if (const auto signal = outcome.late_stop ? outcome.late_stop : parts_.signals.pause(pause)) {
      const JobPlan alone{.exit_code = requeue_exit_code_,
                          .problems = {stopped_between_starts(*signal, requeue_exit_code_)}};
      // Without agents_ this host was cut off, and was about to join again.
      const JobPlan end = agents_ ? agents_->stop(*signal) : alone;
      code = end.exit_code;
      for (const auto& text : end.problems) parts_.console.message(text);
      correct_verdict(end);
      break;
    }
  }
  parts_.guardian.disarm();  // no start of this host follows
  // This host leaves before the store ends, and node rank 0 keeps the store until the others have left too: a launcher
  // that still reads how the job ended would take a missing store for a lost host.
  agents_.reset();
  if (stores_) stores_->wait_until_idle(Deadline::after(others_leave));
  return code;
}

void HostOfSeveral::correct_verdict(const JobPlan& end) {
  if (awaited_after_ == 0) return;
  const auto why = fmt::format("{}", fmt::join(end.problems, "; "));
  end_after_verdict(options_.log_dir, awaited_after_, end.exit_code, why, parts_.console);
}

void HostOfSeveral::join() {
  Contract& contract = job_options_.contract;
  const auto deadline = Deadline::after(options_.rdzv_timeout);
  const auto say = [this](const std::string& text) {
    parts_.console.message(text);
    parts_.console.flush();
  };
  if (starts_ == 0) {
    stores_ = serve_store(options_, contract, input_ != nullptr, deadline, say, news_);
    if (stores_ && options_.endpoint.port == 0) options_.endpoint.port = stores_->address().port;
    if (stores_ && input_ != nullptr) print_error(fmt::format("{}{}", kServesLine, options_.endpoint.port));
  }
  agents_ =
      join_agents(options_, environment_, contract, {.serves = stores_ != nullptr, .can_replace = input_ == nullptr},
                  deadline, say, parts_.signals, news_);
}

// A signal ends this process in the usual way while it joins the job, since no rank runs yet.
JobPlan HostOfSeveral::meet() {
  std::optional<SignalsLetThrough> until_the_start;
  if (!agents_) until_the_start.emplace(parts_.signals);
  HostFacts facts = look_at_this_host(options_, environment_, parts_.guardian, preparation_);
  if (input_ != nullptr && !input_->problem.empty()) {
    facts.problem = input_->problem;
    facts.exit_code = kExitUsage;
  }
  if (starts_ > 0 && !facts.problem.empty()) facts.exit_code = requeue_exit_code_;  // another host may still be fit
  if (!agents_) join();
  const Contract& contract = job_options_.contract;
  try {
    return agents_->meet(std::move(facts), {.run_id = contract.run_id,
                                            .master_addr = contract.master_addr,
                                            .master_port = contract.master_port,
                                            .torch_store = contract.torch_store});
  } catch (const StoreError& error) {
    throw StoreError(fmt::format("host {} can't join the job: {}; look also at what the launcher of node rank 0 wrote",
                                 host_name(), error.what()));
  }
}

StartOutcome HostOfSeveral::start_ranks(const JobPlan& plan) {
  JobOptions job_options = job_options_;
  Contract& contract = job_options.contract;
  contract.hosts = plan.hosts;
  contract.node_rank = agents_->node_rank();
  contract.restarts = plan.start;
  contract.run_id = plan.run_id;
  contract.store_address = options_.endpoint.to_string();
  contract.relay_address = agents_->relay_address();
  contract.master_addr = plan.master_addr;
  contract.master_port = plan.master_port;
  contract.torch_store = plan.torch_store;
  const std::string scope = rendezvous::attempt_prefix(plan.run_id, plan.start);
  if (stores_) {
    job_options.members = [this, scope] { return stores_->members(scope); };
    job_options.ask_for_stacks = [this](int question, int rank, int pid) {
      news_.put(StacksAsked{.question = question, .rank = rank, .pid = pid});
    };
  }
  if (starts_ == 0 && stores_ && !stores_->open_address().empty()) {
    parts_.console.message(torch_store_warning(stores_->open_address()));
  }
  parts_.console.message(describe_start(plan, contract.node_rank));
  if (starts_++ == 0) say_before_the_start(options_, preparation_, environment_, parts_.console);
  const auto outcome = run_ranks(
      options_, preparation_, std::move(job_options), environment_, parts_,
      [&](auto facts) { return control(plan, scope, std::move(facts)); }, &agents_->store());
  if (stores_) stores_->forget(scope);
  return outcome;
}

std::unique_ptr<JobControl> HostOfSeveral::control(const JobPlan& plan, const std::string& scope,
                                                   std::function<RankFacts(int rank)> facts) {
  if (agents_->node_rank() != 0) {
    return std::make_unique<WorkerControl>(WorkerControl::Options{.hosts = plan.hosts,
                                                                  .start = plan.start,
                                                                  .node_rank = agents_->node_rank(),
                                                                  .requeue_exit_code = requeue_exit_code_,
                                                                  .may_rejoin = options_.takes_spares(),
                                                                  .speaks = input_ == nullptr},
                                           *agents_, news_);
  }
  // For a running rank on another host, only the host is known here.
  auto facts_of = [hosts = plan.hosts, facts = std::move(facts)](int rank) {
    if (hosts.front().has(rank)) return facts(rank);
    return RankFacts{.rank = rank, .host = hosts[static_cast<std::size_t>(node_of(hosts, rank))].name};
  };
  return std::make_unique<CoordinatorControl>(
      FailureArbiter::Options{
          .hosts = plan.hosts,
          .grace = options_.grace,
          .requeue_exit_code = requeue_exit_code_,
          .stop_timeout = stop_timeout(environment_),
          .least_hosts = options_.hosts_may_change() ? options_.least_nodes : 0,
          .may_grow = options_.hosts_may_change() && std::cmp_less(plan.hosts.size(), options_.nodes),
          .scope = scope,
          .restarts = &restarts_,
          .why_no_start = [this] { return agents_->why_no_start(); },
          .members = [this, scope] { return stores_->members(scope); },
          .facts = std::move(facts_of),
          .on_conclusion = verdict_writer(options_.log_dir, plan.run_id, plan.start + 1, parts_.console)},
      plan.start, *agents_, news_, [this](TakenStacks stacks) {
        if (parts_.server) parts_.server->stacks_came(stacks.question, std::move(stacks.lines));
      });
}

// A host that has lost the store's host may only have been cut off from it; if the job continues, the host joins again.
bool HostOfSeveral::joins_again() {
  if (!options_.takes_spares() || stores_ || !agents_ || !agents_->is_cut_off()) return false;
  agents_.reset();
  // If the end of the start was received first, the reason why this host rejoins has not been printed yet.
  for (const AgentNews& news : news_.take()) {
    const auto* gone = std::get_if<StoreGone>(&news);
    if (gone != nullptr && gone->is_expelled) parts_.console.message(std::string(kStoodStill));
  }
  parts_.console.message(
      fmt::format("this host is joining the job again, if the job's store at {} answers within {:g} s (--rdzv-timeout)",
                  options_.endpoint.to_string(), std::chrono::duration<double>(options_.rdzv_timeout).count()));
  return true;
}

int HostOfSeveral::say_store_is_gone(const std::string& how) {
  parts_.console.message(
      fmt::format("the host of the job's store is gone: {}; start the job again, unless that host's output shows that "
                  "the job had ended; exit code {}",
                  how, requeue_exit_code_));
  return requeue_exit_code_;
}

}  // namespace

int start_several_hosts(RunOptions options, const Environment& environment, AgentInput* input) {
  return HostOfSeveral(std::move(options), environment, input).run();
}

}  // namespace lockstep::launcher
