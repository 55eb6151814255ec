// SPDX-License-Identifier: Apache-2.0
// Gives the verdict on one start of a job's ranks: the rank or host that failed first, the message about it, the job's
// exit code, and whether the ranks are started again. One verdict covers all hosts.
//
// Pure except for the clock: it receives events in order, and its decisions are orders.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/placement/rank_map.h"
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
    RankMap hosts = {};  // all hosts, by node rank
    std::chrono::milliseconds grace{700};
    int requeue_exit_code = kExitRequeue;
    // Time from a signal that is passed on to the end of a step; afterwards the signal ends the ranks.
    std::chrono::nanoseconds stop_timeout = std::chrono::seconds(25);
    int least_hosts = 0;    // the fewest hosts with which the job can continue; 0: all of them
    bool may_grow = false;  // a host that joins can be added to these
    // Prefix of the names of the ranks' scopes (rendezvous::attempt_prefix); other scopes are ignored.
    std::string scope = {};
    RestartPolicy* restarts = nullptr;  // outlives the arbiter
    // Returns why the ranks can't start again; empty: they can. May be null.
    std::function<std::string()> why_no_start = {};
    // Returns the members that have registered with the job's store in this start; may be null.
    std::function<std::vector<membership::MemberView>()> members = {};
    // Returns the facts of a rank that has not ended.
    std::function<RankFacts(int rank)> facts = {};
    // Gets the result of conclude(); may be null.
    std::function<void(const VerdictRecord&)> on_conclusion = {};
  };
  explicit FailureArbiter(Options options);

  void rank_ended(RankEnd end);
  void heard(const Cause& cause);
  // Handles news of the ranks' own scope.
  void told(const membership::MemberNews& news);
  // The host and its ranks have left the job. `how`: "is gone: ...".
  void host_lost(int node, const std::string& how);
  // The first host's launcher, which is this process, did not run for `time`. The other hosts may have taken it for
  // lost: news from them is then a consequence, and this host is named.
  void stood_still(std::chrono::nanoseconds time);
  // The job must end: the first signal asks the ranks to stop, the second kills them. After conclude() a
  // signal only sets late_stop().
  void signalled(int signal);
  // Stops the ranks after a step, so that a host can be added, at once if a step has been finished; not before that,
  // and not if the ranks end for another reason. May be called repeatedly.
  void resize();
  // The answer to Order::Kind::take_stacks, which is ordered at most once and awaited for some seconds.
  void stacks_taken(const std::vector<std::string>& lines);
  std::optional<Deadline> due() const;
  void check_timers();

  std::vector<Order> take_orders() { return std::exchange(orders_, {}); }
  const std::vector<RankEnd>& ended() const { return ended_; }
  // The signal that asked the job to end; 0: none.
  int stop_signal() const { return stop_.signal(); }
  bool is_given() const { return lost_host_ || root_cause_.first_failure(); }
  // Prints the last messages, after all processes have ended. `complaint` is a launcher's exit code for processes that
  // it could not end or output that it could not write; 0: none. May be called once.
  void conclude(int complaint);
  // Results of conclude(): the job's exit code, and the pause before the ranks are started again; nullopt: the job is
  // over.
  int exit_code() const { return decision_.exit_code; }
  std::optional<std::chrono::milliseconds> again() const { return decision_.pause; }
  // The first signal after conclude(): the ranks must not be started again.
  const std::optional<int>& late_stop() const { return late_stop_; }
  // Result of conclude(): the host that the next start leaves out, if there is one.
  const std::optional<HostSlots>& left_out() const { return decision_.left_out; }
  // Result of conclude(): why the next start needs a host that this one did not have; empty: it does not.
  const std::string& awaits_host() const { return awaits_host_; }

 private:
  // Sets only kind, exit code and culprit.
  StartEnd judge_end();
  // The kind of an end by root_cause_.first_failure().
  StartEnd::Kind judge_failure();
  std::optional<HostSlots> culprit() const;
  void decide(int complaint);
  VerdictRecord record() const;
  VerdictRecord::FirstFailure first_failure() const;
  // The last step that a rank has seen saved; -1: none is known.
  std::int64_t saved_step() const;
  void count_steps(const membership::MemberPosition& position);
  void obey(RootCause::Step step);
  // Reports the first failure and orders the ranks' end, unless it has done so. `where` are the rank's stacks, or
  // empty.
  void tell_failure(const std::vector<std::string>& where);
  void tell_failure_without_stacks();
  // The job has failed because of this host.
  void blame(int node, const std::string& how);
  // Returns true if the current news follows from a standstill of this process; the job has then failed because of it.
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
  std::optional<Deadline> judge_at_;  // the root must have shown its ending by then
  // The first failure's time from the start, until tell_failure().
  std::optional<std::chrono::duration<double>> failed_after_;
  std::optional<Deadline> tell_at_;               // the end of the wait for its stacks, or for the others' errors
  StopRequest stop_{Deadline::Duration::zero()};  // each host merges signals of one request itself
  std::optional<Deadline> stop_late_at_;          // when the ranks that have not stopped are named
  std::chrono::nanoseconds stood_still_{0};       // length of the last standstill
  std::optional<Deadline> still_until_;           // news before that time follows from the standstill
  AgreedStop agreed_;
  bool is_resizing_ = false;
  std::vector<RankEnd> ended_;
  std::vector<Order> orders_;
  std::vector<int> lost_hosts_;   // node ranks
  std::optional<int> lost_host_;  // the host because of which the job failed
  int lost_ranks_ = 0;            // ranks that ran on lost hosts
  int killed_after_failure_ = 0;  // ranks that outlived the grace period
  StartEnd steps_;                // only its steps are used
  RestartPolicy::Decision decision_;
  bool is_concluded_ = false;
  std::optional<int> late_stop_;
  std::string awaits_host_;
  std::string summary_;  // the outcome in one line, set by judge_end()
  std::string hint_;     // how to resume; set by conclude(), empty if nothing is saved or the ranks start again
};

}  // namespace lockstep::launcher
