// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/agent_link.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "launcher/base/amounts.h"
#include "launcher/base/exit_codes.h"
#include "launcher/verdict/restart_policy.h"
#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"
#include "runtime/job/exit_code.h"

namespace lockstep::launcher {
namespace {

using namespace std::chrono_literals;
using membership::MemberEvent;

constexpr const char* kNext = "agents/next";  // the last agent number that the store has assigned
// the plan of the start that is under way or of the job's end; between two starts one that is not made yet
constexpr const char* kPlan = "agents/plan";
// Extra time in which the other agents wait for node rank 0's plan after their own limit: the plan names the missing
// hosts.
constexpr auto kPlanFollows = 10s;
// Delay before the first message that names the missing hosts, at the job's first start.
constexpr auto kQuietWait = 10s;

// Returns nullopt, and logs it, if the text is not a word of an agent.
std::optional<AgentWord> read_word(std::string_view scope, std::string_view text) {
  auto word = scope == kAgentScope ? decode_agent_word(text) : std::nullopt;
  if (!word) {
    log_warn(
        "a member of '{}' sent {} bytes to this launcher that are not an agent's message, and this launcher ignored "
        "them; run the same version of lockstep on every host",
        printable(scope, 64), text.size());
  }
  return word;
}

// Sleeps until `fd` is readable or a signal arrives, at most until `deadline`.
void await(int fd, const Signals* signals, const Deadline& deadline) {
  pollfd entries[] = {{fd, POLLIN, 0}, {signals == nullptr ? -1 : signals->fd(), POLLIN, 0}};
  uninterrupted([&] { return poll(entries, 2, deadline.poll_timeout_ms()); });
}

}  // namespace

void put_news(WakingQueue<AgentNews>& queue, const membership::MemberNews& news) {
  if (!news.message) {
    queue.put(news);
  } else if (auto word = read_word(news.scope, *news.message)) {
    queue.put(std::move(*word));
  }
}

AgentLink::AgentLink(Options options, WakingQueue<AgentNews>& news)
    : options_(std::move(options)),
      news_(news),
      store_(options_.endpoint, options_.deadline),
      meeting_(options_.least, options_.most) {
  // Node rank 0's agent lives and stands still with the store.
  membership::LivenessOptions liveness{.detect_silence = options_.silence && !options_.serves};
  if (options_.silence) liveness.silence = *options_.silence;
  membership::MemberCalls calls{.on_event = [this](const MemberEvent& event) { on_event(event); }};
  if (!options_.serves) {
    agent_ = static_cast<int>(store_.add(kNext, 1));
    relay_ = std::make_unique<membership::MemberRelay>(options_.endpoint);
    calls.on_forwarded = [this](auto frames) { relay_->deliver(std::move(frames)); };
    calls.on_word = [this](const std::string&, const std::string& text) { on_word(text); };
  }
  // The link comes before the message that this host has joined: from then on the store notices its end.
  link_ = std::make_unique<membership::MemberLink>(
      options_.endpoint, kAgentScope,
      membership::MemberInfo{
          .rank = agent_, .world_size = kMostAgents, .process = membership::ProcessInfo::of_this_process()},
      liveness, std::move(calls), options_.deadline);
  if (relay_) relay_->connect(link_.get());
}

// The relay must not send over a link that ends, and the link's thread delivers to the relay, so the order is: the
// relay loses the link, the link ends, the relay ends.
AgentLink::~AgentLink() {
  if (relay_) relay_->connect(nullptr);
  link_.reset();
}

JobPlan AgentLink::meet(HostFacts own, JobPlan draft) {
  own.agent = agent_;
  own_ = own;
  if (!options_.serves) {
    if (std::exchange(has_started_, false)) ++start_;
    if (std::exchange(is_new_, false)) {
      const JobPlan plan = read_plan(options_.deadline);
      start_ = plan.start;
      if (auto end = plan.is_made() ? stand_by(plan) : std::nullopt) return *end;
    }
    send(HostJoined{own});
    // At the first start the problem keeps every host from beginning; at a later start it ends only this host.
    if (start_ > 0 && !own.problem.empty()) return {.exit_code = own.exit_code, .problems = {own.problem}};
    return await_plan();
  }
  JobPlan plan;
  store_.set(kPlan, encode(JobPlan{.start = meeting_.start()}));
  if (meeting_.start() > 0 && !own.problem.empty()) {
    plan = {.exit_code = own.exit_code, .problems = {fmt::format("host {}: {}", own.name, own.problem)}};
  } else {
    meeting_.host_joined(std::move(own), meeting_.start());
    plan = await_hosts(std::move(draft));
    for (const HostFacts& host : meeting_.hosts()) {
      if (meeting_.start() > 0 || host.trace.empty() == own_.trace.empty()) continue;
      options_.say(
          fmt::format("--trace was given on host {} and not on host {}; give it on every host: node rank 0 "
                      "writes the timeline, of the ranks of hosts that have it",
                      host.trace.empty() ? own_.name : host.name, host.trace.empty() ? host.name : own_.name));
    }
  }
  publish(plan);
  return plan;
}

void AgentLink::host_joined(const HostJoined& joined, int start) {
  std::string problem = joined.host.problem;
  if (problem.empty()) problem = difference(joined.host, own_);
  if (meeting_.start() == 0 || problem.empty()) return meeting_.host_joined(joined.host, start);
  options_.say(fmt::format("host {}: {}", joined.host.name, problem));
  meeting_.host_left(joined.host.agent);
}

void AgentLink::host_left(const Cause& cause) {
  meeting_.host_left(cause.rank);
  returns_ = returns_ || cause.kind == Cause::Kind::failed;
}

void AgentLink::cancel_next_start(JobPlan plan) {
  if (options_.serves) publish(plan);
}

JobPlan AgentLink::stop(int signal) {
  JobPlan end = stopped_by(signal, "");
  if (options_.serves) {
    publish(end);
  } else {
    send(StopAsked{.signal = signal});
  }
  return end;
}

void AgentLink::publish(JobPlan& plan) {
  plan.start = start_ = meeting_.start();
  plan.job = own_;
  plan.left_out.assign(meeting_.left_out().begin(), meeting_.left_out().end());
  store_.set(kPlan, encode(plan));
  send(PlanMade{});
  meeting_.begin(plan.hosts);
  last_hosts_ = plan.hosts;
  returns_ = false;
  awaits_newcomer_.clear();
}

std::string AgentLink::lost_hosts() const {
  std::vector<std::string> lost;
  for (std::size_t node = 0; node < last_hosts_.size(); ++node) {
    if (!meeting_.has_gone(last_hosts_[node].agent)) continue;
    lost.push_back(fmt::format("host {} (node rank {})", last_hosts_[node].name, node));
  }
  return fmt::format("{}", fmt::join(lost, ", "));
}

std::string AgentLink::why_no_start() const {
  if (meeting_.missing() == 0 || options_.can_replace || returns_) return {};
  return lost_hosts() +
         " is lost, and `lockstep run -H` starts no launcher on another host instead; start the job again";
}

JobPlan AgentLink::await_hosts(JobPlan draft) {
  const auto deadline = Deadline::after(options_.meet_timeout);
  std::optional<Deadline> more_until;
  auto say_at = Deadline::after(kQuietWait);
  bool has_said = false;
  while (true) {
    if (auto end = take_news_of_meeting()) return *end;
    if (!more_until && meeting_.start() == 0 && meeting_.has_least()) more_until = Deadline::after(options_.more_hosts);
    const bool has_waited = (more_until && more_until->expired()) || (deadline.expired() && meeting_.has_least());
    if (meeting_.is_complete(has_waited)) return plan_job(std::move(draft), meeting_.hosts());
    if (const auto signal = asked_to_end()) return stopped_by(*signal, "");
    if (const auto why = why_no_start(); !why.empty()) {
      return JobPlan{.exit_code = kExitPeerLost, .problems = {fmt::format("{}; exit code {}", why, kExitPeerLost)}};
    }
    if (deadline.expired() && !awaits_newcomer_.empty()) {
      return JobPlan{.exit_code = kExitPeerLost,
                     .problems = {fmt::format("no other host has joined, {}: {}; exit code {}", deadline.progress(),
                                              awaits_newcomer_, kExitPeerLost)}};
    }
    if (deadline.expired()) {
      auto plan = plan_without(meeting_.hosts(), meeting_.needed(), deadline.progress(), lost_hosts());
      if (meeting_.start() > 0) plan.exit_code = kExitPeerLost;  // the job itself has no error
      return plan;
    }
    if (const int missing = meeting_.missing(); missing > 0 && !std::exchange(has_said, true)) {
      options_.say(fmt::format("waiting for {} (--rdzv-timeout {:g} s)", count_of(missing, "host"),
                               std::chrono::duration<double>(options_.meet_timeout).count()));
    }
    if (meeting_.start() == 0 && !meeting_.has_least() && say_at.expired()) {
      options_.say(plan_without(meeting_.hosts(), meeting_.needed(), deadline.progress()).problems.front());
      say_at = Deadline::never();
    }
    Deadline next = more_until ? deadline.sooner(more_until->remaining()) : deadline;
    await(news_.fd(), options_.signals, next.sooner(say_at.remaining()));
  }
}

// Returns the plan that ends the meeting; usually nullopt.
std::optional<JobPlan> AgentLink::take_news_of_meeting() {
  for (const AgentNews& news : news_.take()) {
    if (const auto* member = std::get_if<membership::MemberNews>(&news)) {
      if (member->scope != kAgentScope || !member->cause) continue;
      host_left(*member->cause);
      if (meeting_.start() > 0 || options_.most > options_.least) continue;
      return JobPlan{
          .exit_code = kExitPeerLost,
          .problems = {fmt::format("host {} left before all hosts had joined: its launcher (pid {}) has ended or does "
                                   "not answer; look at that launcher's output, and start the job again; exit code {}",
                                   member->cause->host, member->cause->pid, kExitPeerLost)}};
    }
    const auto* word = std::get_if<AgentWord>(&news);
    if (word == nullptr) continue;
    if (const auto* host = std::get_if<HostJoined>(&word->message)) host_joined(*host, word->start);
    if (const auto* stop = std::get_if<StopAsked>(&word->message)) {
      return stopped_by(stop->signal, ", on another host");
    }
  }
  return std::nullopt;
}

// Applies to later starts only: before the first one a signal ends the process.
std::optional<int> AgentLink::asked_to_end() {
  return options_.signals == nullptr ? std::nullopt : options_.signals->take_end();
}

JobPlan AgentLink::stopped_by(int signal, std::string_view where) const {
  return {.exit_code = options_.requeue_exit_code,
          .problems = {stopped_between_starts(signal, options_.requeue_exit_code, where)}};
}

JobPlan AgentLink::read_plan(const Deadline& deadline) { return decode_job_plan(store_.get(kPlan, deadline), kPlan); }

JobPlan AgentLink::await_plan() {
  const bool waits = options_.takes_spares || options_.most > options_.least;
  const Deadline deadline = waits ? Deadline::never() : Deadline::after(options_.meet_timeout + kPlanFollows);
  while (true) {
    if (plan_made_.is_set()) {
      plan_made_.clear();
      JobPlan plan = read_plan(deadline);
      const bool is_next = plan.is_made() && plan.start >= start_;  // node rank 0 may be a start further already
      const auto own = std::ranges::find(plan.hosts, agent_, &HostSlots::agent);
      if (is_next && own != plan.hosts.end()) {
        node_rank_ = static_cast<int>(own - plan.hosts.begin());
        has_started_ = true;
        return plan;
      }
      if (auto end = is_next ? stand_by(plan) : std::nullopt) return *end;
    }
    if (deadline.expired()) {
      throw Timeout(fmt::format(
          "node rank 0 has made no plan of the job's next start, {}; look at what node rank 0's launcher wrote",
          deadline.progress()));
    }
    if (const auto signal = asked_to_end()) return stop(*signal);
    await(plan_made_.fd(), options_.signals, deadline);
  }
}

std::optional<JobPlan> AgentLink::stand_by(const JobPlan& plan) {
  if (plan.hosts.empty()) return plan;
  start_ = plan.start + 1;
  if (std::find(plan.left_out.begin(), plan.left_out.end(), own_.name) != plan.left_out.end()) {
    return JobPlan{
        .exit_code = kExitNoProgress,
        .problems = {fmt::format("host {} is left out of this job, for a reason that the first host's launcher "
                                 "tells; look at what the ranks here wrote; exit code {}",
                                 own_.name, kExitNoProgress)}};
  }
  if (const std::string problem = difference(own_, plan.job); !problem.empty()) throw StoreError(problem);
  std::vector<std::string> names;
  for (const HostSlots& host : plan.hosts) names.push_back(host.name);
  const int count = static_cast<int>(names.size());
  if (count < options_.most) {
    options_.say(fmt::format(
        "the job runs on {} ({}) without this host, which joins when the ranks stop for it, or at a later start",
        count_of(count, "host"), fmt::join(names, ", ")));
    return std::nullopt;
  }
  const std::string full =
      fmt::format("the job has its {} already ({}): this host ", count_of(count, "host"), fmt::join(names, ", "));
  if (!options_.takes_spares) throw StoreError(full + "would be one more; correct --nnodes");
  options_.say(full + "waits, to take the place of one that is lost");
  return std::nullopt;
}

void AgentLink::on_event(const MemberEvent& event) {
  const bool is_of_store = event.kind == MemberEvent::Kind::store_lost ||
                           event.kind == MemberEvent::Kind::store_silent ||
                           event.kind == MemberEvent::Kind::store_answers;
  if (is_of_store && relay_) relay_->deliver(event);
  if (event.kind == MemberEvent::Kind::silent && event.cause.rank == agent_) {
    is_cut_off_ = true;
    news_.put(StoreGone{.is_expelled = true});
    store_.give_up();
    plan_made_.notify();
    return;
  }
  if (event.kind != MemberEvent::Kind::store_lost && event.kind != MemberEvent::Kind::store_silent) return;
  if (event.kind == MemberEvent::Kind::store_silent) {
    is_cut_off_ = true;
    // This report precedes everything that follows from the loss, such as the ends of this host's ranks: a store's
    // launcher that only stood still reads it first when it resumes, and so knows that those ends are consequences.
    link_->report({.kind = Cause::Kind::failed,
                   .rank = agent_,
                   .reporter = agent_,
                   .text = "this launcher did not hear of the job's store, and ends its ranks"});
  }
  const std::string who = event.host ? fmt::format(" (pid {})", event.host->pid) : "";
  news_.put(
      StoreGone{.how = fmt::format("its launcher{} {}", who,
                                   event.kind == MemberEvent::Kind::store_lost ? "has ended" : "does not answer")});
  store_.give_up();
  plan_made_.notify();
}

// A word that is said while this host waits for a start is not for it.
void AgentLink::on_word(std::string_view text) {
  auto word = read_word(kAgentScope, text);
  if (!word) return;
  if (std::holds_alternative<PlanMade>(word->message)) return plan_made_.notify();
  if (word->start >= start_) news_.put(std::move(*word));
}

void AgentLink::send(const AgentMessage& message) {
  const std::string text = encode(AgentWord{start_, message});
  if (options_.serves) return link_->say(kAgentScope, {}, text);
  relay_->flush();  // a rank's progress is reported before its end
  link_->send(text);
}

}  // namespace lockstep::launcher
