// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/agent_control.h"

#include <fmt/format.h>

#include <utility>

#include "launcher/command_line.h"
#include "runtime/base/signal_name.h"

namespace lockstep::launcher {

FirstHost::FirstHost(const JobVerdict::Options& options, Agents& agents, WakingQueue<AgentNews>& news)
    : verdict_(options), agents_(agents), news_(news) {
  for (std::size_t node = 0; node < options.hosts.size(); ++node) waited_for_.insert(static_cast<int>(node));
}

void FirstHost::take_news() {
  for (const AgentNews& news : news_.take()) {
    if (const auto* member = std::get_if<membership::MemberNews>(&news)) {
      if (member->scope != kAgentScope) {
        verdict_.told(*member);
      } else if (member->cause && waited_for_.contains(member->cause->rank)) {
        verdict_.host_lost(member->cause->rank,
                           fmt::format("is gone: its launcher (pid {}) {}", member->cause->pid,
                                       member->cause->kind == Cause::Kind::silent ? "does not answer" : "has ended"));
        host_is_gone(member->cause->rank, 0);
      }
    } else if (const auto* message = std::get_if<AgentMessage>(&news)) {
      take(*message);
    } else {
      for (const int node : std::set<int>(waited_for_)) {
        if (node == 0) continue;
        verdict_.host_lost(node, "can't be reached: the job's store, which is here, has ended");
        host_is_gone(node, kExitInternal);
      }
    }
  }
}

// A scheduler sends its signal to every host, at different times: each host's own second one insists.
void FirstHost::signalled(int signal) {
  const auto step = stop_.asked(signal);
  if (step == StopRequest::Step::kill || (step == StopRequest::Step::pass_on && verdict_.stop_signal() == 0)) {
    verdict_.signalled(signal);
  }
}

void FirstHost::take(const AgentMessage& message) {
  if (const auto* end = std::get_if<RankEnd>(&message)) {
    verdict_.rank_ended(*end);
  } else if (const auto* cause = std::get_if<Cause>(&message)) {
    verdict_.heard(*cause);
  } else if (const auto* stop = std::get_if<StopAsked>(&message)) {
    if (stop->insists || verdict_.stop_signal() == 0) verdict_.signalled(stop->signal);
  } else if (const auto* gone = std::get_if<RanksGone>(&message)) {
    host_is_gone(gone->node, gone->exit_code);
  }
}

void FirstHost::host_is_gone(int node, int exit_code) {
  if (waited_for_.erase(node) == 0) return;
  if (complaint_ == 0) complaint_ = exit_code;
  if (!waited_for_.empty()) return;
  const int code = verdict_.conclude();
  exit_code_ = code != 0 ? code : complaint_;
}

// What this host is told the others are told too.
std::vector<Order> FirstHost::take_orders() {
  auto orders = verdict_.take_orders();
  for (const Order& order : orders) {
    if (order.kind != Order::Kind::detail) agents_.send(order);
  }
  if (exit_code_ && !is_over_) {
    agents_.send(JobOver{*exit_code_});
    is_over_ = true;
  }
  return orders;
}

void OtherHost::rank_ended(RankEnd end) {
  agents_.send(end);
  ended_.push_back(std::move(end));
}

void OtherHost::ranks_are_gone(int exit_code) {
  is_gone_ = true;
  agents_.send(RanksGone{options_.node_rank, exit_code});
}

// This host's ranks need not wait for the others to hear of it.
void OtherHost::signalled(int signal) {
  const auto step = stop_.asked(signal);
  const bool insists = step == StopRequest::Step::kill;
  if (step == StopRequest::Step::ignore || (is_stopping_ && !insists)) return;
  is_stopping_ = true;
  agents_.send(StopAsked{.signal = signal, .insists = insists});
  orders_.push_back({.text = fmt::format("{}: {} on all hosts{}", signal_name(signal),
                                         insists ? "killing the ranks" : "passed on to the ranks",
                                         insists ? "" : "; once more to kill them")});
  orders_.push_back({.kind = insists ? Order::Kind::kill : Order::Kind::pass_on, .signal = signal});
}

void OtherHost::take_news() {
  for (const AgentNews& news : news_.take()) {
    if (const auto* message = std::get_if<AgentMessage>(&news)) {
      take(*message);
    } else if (const auto* gone = std::get_if<StoreGone>(&news)) {
      store_is_gone(gone->how);
    }
  }
}

void OtherHost::take(const AgentMessage& message) {
  if (const auto* over = std::get_if<JobOver>(&message)) exit_code_ = over->exit_code;
  const auto* order = std::get_if<Order>(&message);
  if (order == nullptr) return;
  if (order->kind == Order::Kind::say && !options_.speaks) return;
  // A signal of this host's own comes back from node rank 0.
  if (order->kind == Order::Kind::pass_on && std::exchange(is_stopping_, true)) return;
  orders_.push_back(*order);
}

void OtherHost::store_is_gone(const std::string& how) {
  if (is_alone_ || exit_code_) return;
  is_alone_ = true;
  orders_.push_back({.text = fmt::format("{}, which has the job's store, is gone: {}; ending this host's ranks; exit "
                                         "code {}",
                                         describe_host(options_.hosts, 0), how, options_.requeue_exit_code)});
  orders_.push_back({.kind = Order::Kind::end_ranks});
}

}  // namespace lockstep::launcher
