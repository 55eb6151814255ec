// SPDX-License-Identifier: Apache-2.0
// The verdict on one start of a job's ranks: which rank or host failed first, what is said of it, what the job exits
// with, or whether the ranks are started again. One for all hosts.
//
// Pure but for the clock: it is told what happens, in order, and its decisions are orders.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/placement/rank_map.h"
#include "launcher/verdict/agreed_stop.h"
#include "launcher/verdict/job_control.h"
#include "launcher/verdict/job_report.h"
#include "launcher/verdict/restart_policy.h"
#include "launcher/verdict/root_cause.h"
#include "launcher/verdict/stop_request.h"
#include "launcher/verdict/verdict_record.h"
#include "runtime/job/exit_code.h"
#include "runtime/membership/membership_table.h"

namespace lockstep::launcher {

class FailureArbiter {
 public:
  struct Options {
    RankMap hosts = {};  // all, by node rank
    std::chrono::milliseconds grace{700};
    int requeue_exit_code = kExitRequeue;
    // From a signal that is passed on to the end of a step; then the ranks end by it.
    std::chrono::nanoseconds stop_timeout = std::chrono::seconds(25);
    int least_hosts = 0;  // that the job can do with; 0: all of them
    std::string scope =
        {};  // what the names of the ranks' scopes begin with (rendezvous::attempt_prefix); else not ours
    RestartPolicy* restarts = nullptr;  // outlives the verdict
    // Returns the members that have registered with the job's store, in this start; may be null.
    std::function<std::vector<membership::MemberView>()> members = {};
    // Returns the facts of a rank that has not ended.
    std::function<RankFacts(int rank)> facts = {};
    // Gets what conclude() has come to; may be null.
    std::function<void(const VerdictRecord&)> on_conclusion = {};
  };
  explicit FailureArbiter(Options options);

  void rank_ended(RankEnd end);
  void heard(const Cause& cause);
  // News of the ranks' own scope.
  void told(const membership::MemberNews& news);
  // The host is not part of the job any more, and neither are its ranks. `how`: "is gone: ...".
  void host_lost(int node, const std::string& how);
  // The first host's launcher, which is this process, did not run for so long. The others may have taken it for lost:
  // what is heard of them now they did for that, and it is this host that is named.
  void stood_still(std::chrono::nanoseconds time);
  // The job shall end: at the first time it is asked to, at the second it is killed.
  void signalled(int signal);
  // Once a step has been finished, the ranks stop after one, so that a host may be taken in; at once, or never where
  // something else ends them before. Any number of times.
  void resize();
  // Answer to Order::Kind::take_stacks, which comes once at most and is waited for for some seconds.
  void stacks_taken(const std::vector<std::string>& lines);
  std::optional<Deadline> due() const;
  void check_timers();

  std::vector<Order> take_orders() { return std::exchange(orders_, {}); }
  const std::vector<RankEnd>& ended() const { return ended_; }
  // The signal that somebody asked the job to end with; 0: none.
  int stop_signal() const { return stop_.signal(); }
  bool is_given() const { return lost_host_ || root_cause_.first_failure(); }
  // Nothing runs any more: says the last words. `complaint`: what a launcher exits with for what it could not end or
  // write; 0 if nothing. May be called once.
  void conclude(int complaint);
  // Then: what the job exits with, and how long to wait before the ranks are started again; nothing: the job is over.
  int exit_code() const { return decision_.exit_code; }
  std::optional<std::chrono::milliseconds> again() const { return decision_.pause; }
  // And then, whether without one of the hosts.
  const std::optional<HostSlots>& left_out() const { return decision_.left_out; }

 private:
  // Kind, exit code and culprit only.
  StartEnd judge_end();
  std::optional<HostSlots> culprit() const;
  void decide(int complaint);
  VerdictRecord record() const;
  VerdictRecord::FirstFailure first_failure() const;
  void count_steps(const membership::MemberPosition& position);
  void obey(RootCause::Step step);
  // Says who failed first, and has the ranks ended. Nothing if that has been said. `where`: its stacks, or why not.
  void tell_failure(const std::vector<std::string>& where);
  void tell_failure_without_stacks();
  // The job has failed for this host.
  void blame(int node, const std::string& how);
  // True if what is being heard follows from a standstill of this process, for which the job has then failed.
  bool blame_standstill();
  RankFacts facts_of(int rank) const;
  int running() const;
  bool several_hosts() const { return options_.hosts.size() > 1; }
  void say(std::string text) { orders_.push_back({.text = std::move(text)}); }
  void list_consequences();
  void say_who_has_not_stopped();

  Options options_;
  std::chrono::steady_clock::time_point started_;
  RootCause root_cause_;
  std::optional<Deadline> judge_at_;              // the root must have shown itself by then
  std::optional<FailureReport> failure_;          // that is still to be said: its rank's stacks are waited for
  std::optional<Deadline> stacks_until_;          // as long as that
  StopRequest stop_{Deadline::Duration::zero()};  // what is one request, its host has found out
  std::optional<Deadline> stop_late_at_;          // when it is said who has not stopped
  std::chrono::nanoseconds stood_still_{0};       // how long this process did last
  std::optional<Deadline> still_until_;           // what is heard before follows from it
  AgreedStop agreed_;
  bool is_resizing_ = false;
  std::vector<RankEnd> ended_;
  std::vector<Order> orders_;
  std::vector<int> lost_hosts_;   // node ranks
  std::optional<int> lost_host_;  // the job failed for it
  int lost_ranks_ = 0;            // that ran on lost hosts
  int killed_after_failure_ = 0;  // ranks that outlived the grace period
  StartEnd steps_;                // of which nothing but the steps is used
  RestartPolicy::Decision decision_;
  std::string summary_;  // how it ended, once that is judged
};

}  // namespace lockstep::launcher
