// SPDX-License-Identifier: Apache-2.0
// The control of a job on several hosts: node rank 0's agent gives the verdict on the job, the other agents report
// events on their hosts to it and obey its orders.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "launcher/hosts/agent_link.h"
#include "launcher/verdict/failure_arbiter.h"

namespace lockstep::launcher {

// The control on node rank 0.
class CoordinatorControl final : public JobControl {
 public:
  // `start` is the number of the start that it controls. `agents` and `news` outlive it. `on_stacks` gets the answers
  // to StacksAsked.
  CoordinatorControl(const FailureArbiter::Options& options, int start, AgentLink& agents, WakingQueue<AgentNews>& news,
                     std::function<void(TakenStacks)> on_stacks);

  void rank_ended(RankEnd end) override;
  void heard(const Cause& cause) override;
  void signalled(int signal) override;
  void stacks_taken(TakenStacks stacks) override;
  void ranks_are_gone(int exit_code) override { host_is_gone(0, exit_code); }
  int news_fd() const override { return news_.fd(); }
  void take_news() override;
  std::optional<Deadline> due() const override;
  void check_timers() override;
  std::vector<Order> take_orders() override;
  bool is_over() const override { return is_over_; }
  int exit_code() const override { return arbiter_.exit_code(); }
  std::optional<std::chrono::milliseconds> again() const override { return arbiter_.again(); }
  std::optional<int> late_stop() const override { return arbiter_.late_stop(); }
  const std::vector<RankEnd>& ended() const override { return arbiter_.ended(); }

 private:
  // Notes that this process runs now. Call it before judging the news that has arrived since the last call.
  void observe();
  void take(const AgentWord& word);
  void agent_lost(const Cause& cause);
  void host_is_gone(int node, int exit_code);

  RankMap hosts_;
  int start_;
  FailureArbiter arbiter_;
  StopRequest stop_;  // signals to this process
  AgentLink& agents_;
  WakingQueue<AgentNews>& news_;
  std::function<void(TakenStacks)> on_stacks_;
  std::vector<Order> asked_;  // orders to take stacks
  std::chrono::steady_clock::time_point observed_at_ = std::chrono::steady_clock::now();
  std::set<int> waited_for_;   // node ranks of hosts with ranks that may run
  int complaint_ = 0;          // exit code of the first host that reported one apart from its ranks' endings; 0: none
  bool is_concluded_ = false;  // none of the job's processes runs
  bool is_over_ = false;       // the job is concluded, and the other hosts have been told
};

// The control on any other node rank.
class WorkerControl final : public JobControl {
 public:
  struct Options {
    RankMap hosts = {};
    int start = 0;  // number of the start that it controls
    int node_rank = 1;
    int requeue_exit_code = kExitRequeue;
    bool may_rejoin = false;  // the host may join again after it was cut off
    bool speaks = true;       // prints the job's verdict; else only node rank 0 does
  };
  WorkerControl(Options options, AgentLink& agents, WakingQueue<AgentNews>& news)
      : options_(std::move(options)), agents_(agents), news_(news) {}

  void rank_ended(RankEnd end) override;
  void heard(const Cause& cause) override { agents_.send(cause); }
  void signalled(int signal) override;
  void stacks_taken(TakenStacks stacks) override { agents_.send(stacks); }
  void ranks_are_gone(int exit_code) override;
  int news_fd() const override { return news_.fd(); }
  void take_news() override;
  std::optional<Deadline> due() const override { return std::nullopt; }
  void check_timers() override {}
  std::vector<Order> take_orders() override { return std::exchange(orders_, {}); }
  bool is_over() const override { return over_ || (is_alone_ && is_gone_); }
  int exit_code() const override { return over_ ? over_->exit_code : options_.requeue_exit_code; }
  std::optional<std::chrono::milliseconds> again() const override;
  std::optional<int> late_stop() const override { return late_stop_; }
  const std::vector<RankEnd>& ended() const override { return ended_; }

 private:
  void take(const AgentMessage& message);
  void store_is_gone(const StoreGone& gone);

  Options options_;
  AgentLink& agents_;
  WakingQueue<AgentNews>& news_;
  StopRequest stop_;          // signals to this process
  bool is_stopping_ = false;  // the ranks have been asked to stop
  std::vector<Order> orders_;
  std::vector<RankEnd> ended_;     // ranks of this host
  std::optional<StartOver> over_;  // set when no rank of any host runs
  std::optional<int> late_stop_;
  bool is_alone_ = false;  // the store is gone
  bool is_gone_ = false;   // none of this host's ranks' processes runs
};

}  // namespace lockstep::launcher
