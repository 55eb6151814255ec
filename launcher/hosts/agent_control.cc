// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/agent_control.h"

#include <fmt/format.h>

#include <utility>

#include "launcher/base/exit_codes.h"
#include "runtime/base/signal_name.h"

namespace lockstep::launcher {
namespace {

std::string_view how_lost(Cause::Kind kind) {
  switch (kind) {
    case Cause::Kind::silent: return "does not answer";
    case Cause::Kind::failed: return "did not hear of this host, and ends its ranks";
    default: return "has ended";
  }
}

// The first host's launcher calls observe() at least this often.
constexpr std::chrono::milliseconds kObserved{500};
// After a longer pause, though one shorter than the silence limit, other hosts may have taken this launcher for lost.
constexpr std::chrono::milliseconds kStandstill{1500};

}  // namespace

CoordinatorControl::CoordinatorControl(const FailureArbiter::Options& options, int start, AgentLink& agents,
                                       WakingQueue<AgentNews>& news, std::function<void(TakenStacks)> on_stacks)
    : hosts_(options.hosts),
      start_(start),
      arbiter_(options),
      agents_(agents),
      news_(news),
      on_stacks_(std::move(on_stacks)) {
  for (std::size_t node = 0; node < hosts_.size(); ++node) waited_for_.insert(static_cast<int>(node));
}

void CoordinatorControl::observe() {
  const auto now = std::chrono::steady_clock::now();
  const auto pause = now - std::exchange(observed_at_, now);
  if (pause > kStandstill) arbiter_.stood_still(pause);
}

std::optional<Deadline> CoordinatorControl::due() const {
  const auto next = observed_at_ + kObserved - std::chrono::steady_clock::now();
  const auto due = arbiter_.due();
  return due ? due->sooner(next) : Deadline::after(next);
}

void CoordinatorControl::rank_ended(RankEnd end) {
  observe();
  arbiter_.rank_ended(std::move(end));
}

void CoordinatorControl::heard(const Cause& cause) {
  observe();
  arbiter_.heard(cause);
}

void CoordinatorControl::take_news() {
  observe();
  for (const AgentNews& news : news_.take()) {
    if (const auto* member = std::get_if<membership::MemberNews>(&news)) {
      if (member->scope != kAgentScope) {
        arbiter_.told(*member);
      } else if (member->cause) {
        agent_lost(*member->cause);
      }
    } else if (const auto* word = std::get_if<AgentWord>(&news)) {
      take(*word);
    } else if (const auto* asked = std::get_if<StacksAsked>(&news)) {
      asked_.push_back(
          {.kind = Order::Kind::take_stacks, .rank = asked->rank, .pid = asked->pid, .question = asked->question});
    } else {
      for (const int node : std::set<int>(waited_for_)) {
        if (node == 0) continue;
        arbiter_.host_lost(node, "can't be reached: the job's store, which is here, has ended");
        host_is_gone(node, kExitInternal);
      }
    }
  }
}

void CoordinatorControl::agent_lost(const Cause& cause) {
  agents_.host_left(cause);
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const int node = static_cast<int>(i);
    if (hosts_[i].agent != cause.rank || !waited_for_.contains(node)) continue;
    arbiter_.host_lost(node, fmt::format("is gone: its launcher (pid {}) {}", cause.pid, how_lost(cause.kind)));
    host_is_gone(node, 0);
  }
}

// A scheduler sends its signal to every host, at different times, so only a second signal on the same host insists.
void CoordinatorControl::signalled(int signal) {
  const auto step = stop_.asked(signal);
  if (step == StopRequest::Step::kill || (step == StopRequest::Step::pass_on && arbiter_.stop_signal() == 0)) {
    arbiter_.signalled(signal);
  }
}

void CoordinatorControl::stacks_taken(TakenStacks stacks) {
  if (stacks.question == 0) {
    arbiter_.stacks_taken(stacks.lines);
  } else {
    on_stacks_(std::move(stacks));
  }
}

void CoordinatorControl::take(const AgentWord& word) {
  const AgentMessage& message = word.message;
  if (const auto* host = std::get_if<HostJoined>(&message)) agents_.host_joined(*host, word.start);
  // A host that was taken for lost may still report earlier events; its request to stop the job remains valid.
  if (word.start != start_ && !std::holds_alternative<StopAsked>(message)) return;
  if (const auto* end = std::get_if<RankEnd>(&message)) {
    // The ranks of a lost host are lost with it, so their ends are consequences.
    if (waited_for_.contains(node_of(hosts_, end->rank))) arbiter_.rank_ended(*end);
  } else if (const auto* cause = std::get_if<Cause>(&message)) {
    arbiter_.heard(*cause);
  } else if (const auto* stop = std::get_if<StopAsked>(&message)) {
    if (stop->insists || arbiter_.stop_signal() == 0) arbiter_.signalled(stop->signal);
  } else if (const auto* stacks = std::get_if<TakenStacks>(&message)) {
    stacks_taken(*stacks);
  } else if (const auto* gone = std::get_if<RanksGone>(&message)) {
    host_is_gone(gone->node, gone->exit_code);
  }
}

// Counts each host once: its launcher may still be lost after its ranks are gone.
void CoordinatorControl::host_is_gone(int node, int exit_code) {
  if (waited_for_.erase(node) == 0) return;
  if (complaint_ == 0) complaint_ = exit_code;
  if (!waited_for_.empty()) return;
  arbiter_.conclude(complaint_);
  is_concluded_ = true;
}

// A resize requires a finished step, since only then is a rank sure to stop after one.
void CoordinatorControl::check_timers() {
  observe();
  arbiter_.check_timers();
  if (agents_.has_newcomer()) arbiter_.resize();
}

// The other hosts get the same orders as this host.
std::vector<Order> CoordinatorControl::take_orders() {
  auto orders = arbiter_.take_orders();
  for (Order& order : std::exchange(asked_, {})) orders.push_back(std::move(order));
  for (const Order& order : orders) {
    if (order.kind != Order::Kind::detail) agents_.send(order);
  }
  if (is_concluded_ && !is_over_) {
    if (arbiter_.left_out()) agents_.exclude_host(*arbiter_.left_out());
    if (!arbiter_.awaits_host().empty()) agents_.await_newcomer(arbiter_.awaits_host());
    // It follows the last order: a worker that reads it obeys no further order of this start.
    agents_.send(StartOver{.exit_code = arbiter_.exit_code(), .again = arbiter_.again().has_value()});
    is_over_ = true;
  }
  return orders;
}

void WorkerControl::rank_ended(RankEnd end) {
  agents_.send(end);
  ended_.push_back(std::move(end));
}

void WorkerControl::ranks_are_gone(int exit_code) {
  is_gone_ = true;
  agents_.send(RanksGone{options_.node_rank, exit_code});
}

// This host's ranks get the signal at once, without waiting for the other hosts.
void WorkerControl::signalled(int signal) {
  if (over_) {
    late_stop_ = late_stop_.value_or(signal);
    return;
  }
  const auto step = stop_.asked(signal);
  const bool insists = step == StopRequest::Step::kill;
  if (step == StopRequest::Step::ignore || (is_stopping_ && !insists)) return;
  is_stopping_ = true;
  agents_.send(StopAsked{.signal = signal, .insists = insists});
  orders_.push_back({.text = fmt::format("{}: {} on all hosts{}", signal_name(signal),
                                         insists ? "killing the ranks" : "passed on to the ranks",
                                         insists ? "" : "; send the signal again to kill the ranks")});
  orders_.push_back({.kind = insists ? Order::Kind::kill : Order::Kind::pass_on, .signal = signal});
}

void WorkerControl::take_news() {
  for (const AgentNews& news : news_.take()) {
    if (const auto* word = std::get_if<AgentWord>(&news)) {
      if (word->start == options_.start) take(word->message);
    } else if (const auto* gone = std::get_if<StoreGone>(&news)) {
      store_is_gone(*gone);
    }
  }
}

void WorkerControl::take(const AgentMessage& message) {
  if (const auto* over = std::get_if<StartOver>(&message)) over_ = *over;
  const auto* order = std::get_if<Order>(&message);
  if (order == nullptr) return;
  if (order->kind == Order::Kind::say && !options_.speaks) return;
  // Node rank 0 returns this host's own signal as an order.
  if (order->kind == Order::Kind::pass_on && std::exchange(is_stopping_, true)) return;
  orders_.push_back(*order);
}

// Node rank 0 makes the pause. A host that was cut off rejoins, unless it was asked to stop.
std::optional<std::chrono::milliseconds> WorkerControl::again() const {
  const bool rejoins = !over_ && options_.may_rejoin && agents_.is_cut_off() && !is_stopping_;
  if (!rejoins && (!over_ || !over_->again)) return std::nullopt;
  return std::chrono::milliseconds(0);
}

void WorkerControl::store_is_gone(const StoreGone& gone) {
  if (over_ && gone.is_expelled) orders_.push_back({.text = std::string(kStoodStill)});
  if (is_alone_ || over_) return;
  is_alone_ = true;
  if (gone.is_expelled) {
    orders_.push_back(
        {.text = fmt::format("{}; ending its ranks; exit code {}", kStoodStill, options_.requeue_exit_code)});
    orders_.push_back({.kind = Order::Kind::end_ranks});
    return;
  }
  orders_.push_back({.text = fmt::format("{}, which has the job's store, is gone: {}; ending this host's ranks; exit "
                                         "code {}",
                                         describe_host(options_.hosts, 0), gone.how, options_.requeue_exit_code)});
  orders_.push_back({.kind = Order::Kind::end_ranks});
}

}  // namespace lockstep::launcher
