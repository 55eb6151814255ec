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
      : verdict_(std::move(options)), news_(news) {}

  void rank_ended(RankEnd end) override { verdict_.rank_ended(std::move(end)); }
  void heard(const Cause& cause) override { verdict_.heard(cause); }
  void signalled(int signal) override {
    if (stop_.asked(signal) != StopRequest::Step::ignore) verdict_.signalled(signal);
  }
  void stacks_taken(TakenStacks stacks) override { verdict_.stacks_taken(stacks.lines); }
  void ranks_are_gone(int exit_code) override {
    verdict_.conclude(exit_code);
    is_over_ = true;
  }
  int news_fd() const override { return news_.fd(); }
  void take_news() override {
    for (const auto& news : news_.take()) verdict_.told(news);
  }
  std::optional<Deadline> due() const override { return verdict_.due(); }
  void check_timers() override { verdict_.check_timers(); }
  std::vector<Order> take_orders() override { return verdict_.take_orders(); }
  bool is_over() const override { return is_over_; }
  int exit_code() const override { return verdict_.exit_code(); }
  std::optional<std::chrono::milliseconds> again() const override { return verdict_.again(); }
  const std::vector<RankEnd>& ended() const override { return verdict_.ended(); }

 private:
  FailureArbiter verdict_;
  StopRequest stop_;
  WakingQueue<membership::MemberNews>& news_;
  bool is_over_ = false;
};

}  // namespace lockstep::launcher
