// SPDX-License-Identifier: Apache-2.0
// The control of a job on one host, which gives the verdict itself.
#pragma once

#include "launcher/base/waking_queue.h"
#include "launcher/verdict/failure_arbiter.h"

namespace lockstep::launcher {

class LocalControl final : public JobControl {
 public:
  // `news` comes from the job's store, and outlives the control.
  LocalControl(FailureArbiter::Options options, WakingQueue<membership::MemberNews>& news)
      : arbiter_(std::move(options)), news_(news) {}

  void rank_ended(RankEnd end) override { arbiter_.rank_ended(std::move(end)); }
  void heard(const Cause& cause) override { arbiter_.heard(cause); }
  void signalled(int signal) override {
    if (stop_.asked(signal) != StopRequest::Step::ignore) arbiter_.signalled(signal);
  }
  void stacks_taken(TakenStacks stacks) override { arbiter_.stacks_taken(stacks.lines); }
  void ranks_are_gone(int exit_code) override {
    arbiter_.conclude(exit_code);
    is_over_ = true;
  }
  int news_fd() const override { return news_.fd(); }
  void take_news() override {
    for (const auto& news : news_.take()) arbiter_.told(news);
  }
  std::optional<Deadline> due() const override { return arbiter_.due(); }
  void check_timers() override { arbiter_.check_timers(); }
  std::vector<Order> take_orders() override { return arbiter_.take_orders(); }
  bool is_over() const override { return is_over_; }
  int exit_code() const override { return arbiter_.exit_code(); }
  std::optional<std::chrono::milliseconds> again() const override { return arbiter_.again(); }
  std::optional<int> late_stop() const override { return arbiter_.late_stop(); }
  const std::vector<RankEnd>& ended() const override { return arbiter_.ended(); }

 private:
  FailureArbiter arbiter_;
  StopRequest stop_;
  WakingQueue<membership::MemberNews>& news_;
  bool is_over_ = false;
};

}  // namespace lockstep::launcher
