// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/failure_arbiter.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "launcher/base/amounts.h"
#include "launcher/process/stacks.h"
#include "launcher/verdict/job_report.h"
#include "launcher/verdict/unstopped_ranks.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/signal_name.h"

namespace lockstep::launcher {
namespace {

// Extra time before a silent rank on another host is blamed: its host may be the silent one, and the agent's silence
// may be noticed a heartbeat later.
constexpr std::chrono::milliseconds kHostPatience{1500};
constexpr std::chrono::seconds kAloneSteps{5};
// Time in which the other ranks may report the error that the first one ended with.
constexpr std::chrono::milliseconds kSameErrorLimit{300};
// Limit for a rank's stacks, for which its host's launcher takes at most kHungLimit (launcher/process/stacks.h).
constexpr std::chrono::seconds kStacksCome = kHungLimit + std::chrono::seconds(3);

}  // namespace

FailureArbiter::FailureArbiter(Options options)
    : options_(std::move(options)),
      started_(std::chrono::steady_clock::now()),
      root_cause_(world_size(options_.hosts)),
      agreed_(world_size(options_.hosts), options_.requeue_exit_code) {}

void FailureArbiter::rank_ended(RankEnd end) {
  // A program that does not share this launcher's memory, behind a command that returned 0.
  const Cause* const word = root_cause_.word_about(end.rank);
  if (end.ending.ok() && end.ending.program == 0 && word != nullptr && word->pid > 0 && word->pid != end.pid) {
    end.ending = {.value = 1, .program = word->pid, .has_no_code = true};
  }
  ended_.push_back(std::move(end));
  const RankEnd& rank = ended_.back();
  if (rank.steps_done) count_steps({.step = 0, .steps_done = *rank.steps_done});
  if (lost_host_) return;
  if (!root_cause_.first_failure() && agreed_.explains(rank.ending)) {
    // The other ranks may still write the snapshot from which they resume, so they are not ended.
    agreed_.ended(rank.ending);
    return;
  }
  if (!root_cause_.first_failure() && stop_.explains(rank.ending)) {
    // Ranks that the requested signal ended have obeyed.
    const bool obeyed = rank.ending.by_signal && rank.ending.value == stop_.signal();
    if (!rank.ending.ok() && !obeyed) say(describe_later_end(rank, stop_.signal()));
    return;
  }
  if (!rank.ending.ok() && blame_standstill()) return;
  if (rank.killed && rank.rank != root_cause_.first_failure()) ++killed_after_failure_;
  obey(root_cause_.ended(rank.rank, rank.ending));
  if (running() == 0) tell_failure_without_stacks();
}

void FailureArbiter::heard(const Cause& cause) {
  if (stop_.signal() == 0 && !lost_host_ && !blame_standstill()) obey(root_cause_.heard(cause));
}

void FailureArbiter::told(const membership::MemberNews& news) {
  // In a group of only some ranks, or of an earlier start, the numbers mean other processes. Ranks do not send
  // messages.
  if (news.message || news.world_size != world_size(options_.hosts) || !news.scope.starts_with(options_.scope)) return;
  count_steps(news.position);
  if (news.cause && news.cause->kind == Cause::Kind::stopped) {
    agreed_.heard(*news.cause);
  } else if (news.cause) {
    heard(*news.cause);
  } else {
    root_cause_.all_have_met();
  }
}

void FailureArbiter::host_lost(int node, const std::string& how) {
  if (std::find(lost_hosts_.begin(), lost_hosts_.end(), node) != lost_hosts_.end()) return;
  lost_hosts_.push_back(node);
  tell_failure_without_stacks();
  const HostSlots& host = options_.hosts[static_cast<std::size_t>(node)];
  lost_ranks_ += host.ranks - static_cast<int>(std::count_if(ended_.begin(), ended_.end(),
                                                             [&](const RankEnd& rank) { return host.has(rank.rank); }));
  blame_standstill();
  if (!is_given()) return blame(node, how);
  say(fmt::format("{} {}", describe_host(options_.hosts, node), how));
}

void FailureArbiter::blame(int node, const std::string& how) {
  lost_host_ = node;
  judge_at_.reset();
  const auto age = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_);
  say(fmt::format("{} {}, {:.1f} s after the start{}", describe_host(options_.hosts, node), how, age.count(),
                  ending_of_others(running())));
  orders_.push_back({.kind = Order::Kind::end_ranks});
}

void FailureArbiter::stood_still(std::chrono::nanoseconds time) {
  stood_still_ = time;
  still_until_ = Deadline::after(kHostPatience);
}

bool FailureArbiter::blame_standstill() {
  if (!still_until_ || still_until_->expired() || is_given() || stop_.signal() != 0) return false;
  still_until_.reset();
  blame(0, fmt::format("stood still for {:.1f} s (its launcher was stopped, or got no core), and the other hosts took "
                       "this host for lost",
                       std::chrono::duration<double>(stood_still_).count()));
  return true;
}

void FailureArbiter::signalled(int signal) {
  if (is_concluded_) {
    late_stop_ = late_stop_.value_or(signal);
    return;
  }
  const int first = stop_.signal();
  tell_failure_without_stacks();
  switch (stop_.asked(signal)) {
    case StopRequest::Step::pass_on:
      judge_at_.reset();
      stop_late_at_ = Deadline::after(options_.stop_timeout / 10 * 9);  // before they end by the signal
      say(fmt::format("{}: passed on to {}; send the signal again to kill the ranks", signal_name(signal),
                      count_of(running(), "rank")));
      orders_.push_back({.kind = Order::Kind::pass_on, .signal = signal});
      return;
    case StopRequest::Step::kill:
      say(fmt::format(
          "{}: killing {}",
          signal == first ? "second " + signal_name(signal) : signal_name(signal) + " after " + signal_name(first),
          count_of(running(), "rank")));
      orders_.push_back({.kind = Order::Kind::kill});
      return;
    case StopRequest::Step::ignore: return;
  }
}

void FailureArbiter::resize() {
  if (is_resizing_ || is_given() || stop_.signal() != 0 || !ended_.empty()) return;
  const auto members = options_.members ? options_.members() : std::vector<membership::MemberView>{};
  const bool has_step = std::ranges::any_of(members, [](const auto& member) { return member.position.step > 0; });
  // A rank that is alone reports no steps: it gets time to reach its first.
  const bool is_alone = world_size(options_.hosts) == 1 && std::chrono::steady_clock::now() - started_ > kAloneSteps;
  if (!has_step && !is_alone) return;
  is_resizing_ = true;
  say("a new host has joined: the ranks stop after a step, and start again with this host");
  orders_.push_back({.kind = Order::Kind::stop_to_resize});
}

std::optional<Deadline> FailureArbiter::due() const {
  std::optional<Deadline> next;
  for (const auto& timer : {judge_at_, stop_late_at_, tell_at_}) {
    if (timer && (!next || timer->remaining() < next->remaining())) next = timer;
  }
  return next;
}

void FailureArbiter::say_who_has_not_stopped() {
  stop_late_at_.reset();
  if (is_given() || !options_.members) return;
  std::vector<RankFacts> unstopped;
  for (int rank = 0; rank < world_size(options_.hosts); ++rank) {
    const bool has_ended = std::ranges::any_of(ended_, [rank](const RankEnd& other) { return other.rank == rank; });
    if (!has_ended && !agreed_.has_reported(rank)) unstopped.push_back(facts_of(rank));
  }
  const auto text = describe_unstopped(unstopped, world_size(options_.hosts), options_.members());
  if (text.empty()) return;
  const double limit = std::chrono::duration<double>(options_.stop_timeout).count();
  say(fmt::format(
      "{:.1f} s after {} no step has ended for all to stop, and after {:.1f} s the ranks end by the signal: {}",
      0.9 * limit, signal_name(stop_.signal()), limit, text));
}

void FailureArbiter::check_timers() {
  if (stop_late_at_ && stop_late_at_->expired()) say_who_has_not_stopped();
  if (tell_at_ && tell_at_->expired()) tell_failure_without_stacks();
  if (!judge_at_ || !judge_at_->expired()) return;
  judge_at_.reset();
  obey(root_cause_.overdue());
}

void FailureArbiter::obey(RootCause::Step step) {
  if (step == RootCause::Step::await_root) {
    const auto patience = root_cause_.patience(options_.grace);
    judge_at_ = Deadline::after(several_hosts() ? std::max(patience, kHostPatience) : patience);
  }
  if (step != RootCause::Step::end_others) return;
  judge_at_.reset();
  failed_after_ = std::chrono::steady_clock::now() - started_;
  if (root_cause_.ending()) {
    if (root_cause_.own_error() == nullptr || running() == 0) return tell_failure({});
    tell_at_ = Deadline::after(kSameErrorLimit);
    return;
  }
  const RankFacts failed = facts_of(*root_cause_.first_failure());
  // The stacks of a rank that still runs are wanted. Its process may be behind a wrapper.
  const Cause* const cause = root_cause_.cause();
  const bool names_it = cause != nullptr && cause->rank == failed.rank && cause->pid > 0;
  tell_at_ = Deadline::after(kStacksCome);
  orders_.push_back({.kind = Order::Kind::take_stacks, .rank = failed.rank, .pid = names_it ? cause->pid : failed.pid});
}

void FailureArbiter::stacks_taken(const std::vector<std::string>& lines) {
  std::vector<std::string> where;
  if (!lines.empty()) where.emplace_back("  where it is:");
  for (const auto& line : lines) where.push_back("  | " + line);
  tell_failure(where);
}

void FailureArbiter::tell_failure(const std::vector<std::string>& where) {
  if (!failed_after_) return;
  tell_at_.reset();
  FailureReport failure =
      describe_failure(root_cause_, facts_of(*root_cause_.first_failure()), *failed_after_, running());
  failed_after_.reset();
  say(failure.message);
  failure.details.insert(failure.details.end(), where.begin(), where.end());
  for (const auto& line : failure.details) orders_.push_back({.kind = Order::Kind::detail, .text = line});
  orders_.push_back({.kind = Order::Kind::end_ranks});
}

void FailureArbiter::tell_failure_without_stacks() {
  if (!failed_after_) return;
  if (root_cause_.ending()) return tell_failure({});
  const int node = node_of(options_.hosts, *root_cause_.first_failure());
  tell_failure(
      {fmt::format("  where it is: the launcher of {} has not told yet", describe_host(options_.hosts, node))});
}

RankFacts FailureArbiter::facts_of(int rank) const {
  const auto ended = std::ranges::find(ended_, rank, &RankEnd::rank);
  if (ended != ended_.end()) return *ended;
  return options_.facts(rank);
}

int FailureArbiter::running() const {
  return world_size(options_.hosts) - static_cast<int>(ended_.size()) - lost_ranks_;
}

// Writes one line for all ranks of a host that ended in the same way.
void FailureArbiter::list_consequences() {
  for (std::size_t node = 0; node < options_.hosts.size(); ++node) {
    std::map<std::string, std::vector<int>> by_ending;
    for (const RankEnd& rank : ended_) {
      if (!options_.hosts[node].has(rank.rank) || rank.rank == root_cause_.first_failure()) continue;
      by_ending[rank.ending.describe_as_consequence()].push_back(rank.rank);
    }
    for (auto& [ending, ranks] : by_ending) {
      std::sort(ranks.begin(), ranks.end());
      orders_.push_back({.kind = Order::Kind::detail,
                         .text = fmt::format("  after it: {} ({}): {}", rendezvous::describe_ranks(ranks),
                                             describe_host(options_.hosts, static_cast<int>(node)), ending)});
    }
  }
}

StartEnd FailureArbiter::judge_end() {
  using Kind = StartEnd::Kind;
  if (several_hosts() && is_given() && !root_cause_.blames_no_rank()) list_consequences();
  if (lost_host_) {
    say(fmt::format("{} was lost first; {} ended after it; exit code {}", describe_host(options_.hosts, *lost_host_),
                    count_of(static_cast<int>(ended_.size()), "rank"), kExitPeerLost));
    return {.kind = stop_.signal() == 0 ? Kind::host_lost : Kind::over, .exit_code = kExitPeerLost};
  }
  if (root_cause_.first_failure()) {
    say(summarise_failure(root_cause_, facts_of(*root_cause_.first_failure()), killed_after_failure_, options_.grace));
    StartEnd end{.kind = judge_failure(), .exit_code = root_cause_.exit_code(), .culprit = culprit()};
    if (root_cause_.computes_wrong() && !root_cause_.blames_no_rank()) {
      end.wrong_host =
          options_.hosts[static_cast<std::size_t>(node_of(options_.hosts, *root_cause_.first_failure()))].name;
    }
    return end;
  }
  if (running() == 0 && std::all_of(ended_.begin(), ended_.end(), [](const auto& rank) { return rank.ending.ok(); })) {
    return {};
  }
  if (running() == 0 &&
      std::all_of(ended_.begin(), ended_.end(), [this](const auto& rank) { return agreed_.explains(rank.ending); })) {
    // Also the ranks whose end became known before any rank's report.
    for (const RankEnd& rank : ended_) agreed_.ended(rank.ending);
    const int code = agreed_.exit_code();
    if (is_resizing_ && code != 0 && stop_.signal() == 0) {
      say(agreed_.describe());
      return {.kind = Kind::resized, .exit_code = code};
    }
    say(fmt::format("{}; exit code {}", agreed_.describe(), code));
    return {.exit_code = code};
  }
  say(fmt::format("stopped by {}; exit code {}", signal_name(stop_.signal()), 128 + stop_.signal()));
  return {.exit_code = 128 + stop_.signal()};
}

// Where no host can be added, another start would fail in the same way.
StartEnd::Kind FailureArbiter::judge_failure() {
  using Kind = StartEnd::Kind;
  const Cause* const absent = root_cause_.absent_host();
  if (stop_.signal() != 0 || (absent != nullptr && !options_.may_grow)) return Kind::over;
  if (absent == nullptr) return Kind::failed;
  awaits_host_ = absent->text;
  return Kind::awaits_host;
}

// The first host has the store, so the job can't continue without it.
std::optional<HostSlots> FailureArbiter::culprit() const {
  if (root_cause_.blames_no_rank()) return std::nullopt;
  const int node = node_of(options_.hosts, *root_cause_.first_failure());
  const int hosts = static_cast<int>(options_.hosts.size());
  if (node <= 0 || options_.least_hosts == 0 || hosts <= options_.least_hosts) return std::nullopt;
  return options_.hosts[static_cast<std::size_t>(node)];
}

// The store forgets ranks once all have gone, so each rank's steps are noted when it ends.
void FailureArbiter::count_steps(const membership::MemberPosition& position) {
  if (position.step < 0) return;
  steps_.reports_steps = true;
  steps_.steps_done = std::max(steps_.steps_done, position.steps_done);
}

std::int64_t FailureArbiter::saved_step() const {
  std::int64_t step = -1;
  for (const RankEnd& rank : ended_) step = std::max(step, rank.saved_step.value_or(-1));
  return step;
}

void FailureArbiter::conclude(int complaint) {
  tell_failure_without_stacks();
  is_concluded_ = true;
  decide(complaint);
  if (!decision_.pause && (is_given() || decision_.exit_code != 0) && !orders_.empty()) {
    const std::int64_t step = saved_step();
    const char* const mend = root_cause_.is_on_all_ranks() ? "mend the program, then " : "";
    if (step >= 0) hint_ = fmt::format("step {} is saved: {}run the same command to resume", step, mend);
    if (step >= 0) orders_.back().text += "; " + hint_;
  }
  if (options_.on_conclusion) options_.on_conclusion(record());
}

VerdictRecord::FirstFailure FailureArbiter::first_failure() const {
  const int rank = *root_cause_.first_failure();
  VerdictRecord::FirstFailure first{.rank = facts_of(rank), .ending = root_cause_.ending()};
  if (const Cause* const cause = root_cause_.cause()) {
    first.cause = *cause;
    first.step = cause->step;
  }
  for (const RankEnd& end : ended_) {
    if (end.rank == rank) first.ending = end.ending;
  }
  // The step in the job's count; other sources count the steps of this start.
  if (first.rank.steps_done) first.step = *first.rank.steps_done;
  if (first.step >= 0 || !options_.members) return first;
  for (const membership::MemberView& member : options_.members()) {
    if (member.info.rank == rank && member.info.world_size == world_size(options_.hosts)) {
      first.step = member.position.step;
    }
  }
  return first;
}

VerdictRecord FailureArbiter::record() const {
  using Outcome = VerdictRecord::Outcome;
  VerdictRecord result{.exit_code = decision_.exit_code,
                       .starts_again = decision_.pause.has_value(),
                       .summary = summary_,
                       .saved_step = saved_step(),
                       .hint = hint_};
  if (decision_.left_out) result.left_out_host = decision_.left_out->name;
  if (lost_host_) {
    result.outcome = Outcome::host_lost;
    result.lost_host = {*lost_host_, options_.hosts[static_cast<std::size_t>(*lost_host_)].name};
  } else if (root_cause_.first_failure()) {
    result.outcome = Outcome::failed;
    result.first = first_failure();
    if (root_cause_.blames_no_rank()) result.first->rank = {.rank = -1};
    if (const Cause* const difference = root_cause_.disagreement()) result.first->cause = *difference;
  } else {
    const bool all_well =
        running() == 0 && std::all_of(ended_.begin(), ended_.end(), [](const auto& rank) { return rank.ending.ok(); });
    result.outcome = all_well && stop_.signal() == 0 ? Outcome::finished : Outcome::stopped;
  }
  if (!is_given()) return result;
  std::copy_if(ended_.begin(), ended_.end(), std::back_inserter(result.consequences),
               [&](const RankEnd& end) { return !result.first || end.rank != result.first->rank.rank; });
  return result;
}

void FailureArbiter::decide(int complaint) {
  StartEnd end = judge_end();
  const bool is_said = is_given() || end.exit_code != 0;
  summary_ = is_said && !orders_.empty() ? orders_.back().text : "every rank ended with code 0";
  decision_.exit_code = end.exit_code != 0 ? end.exit_code : complaint;
  // New ranks would conflict with processes that the ranks have left.
  if (complaint != 0 || options_.restarts == nullptr) return;
  end.ran = std::chrono::steady_clock::now() - started_;
  if (options_.members) {
    for (const auto& member : options_.members()) count_steps(member.position);
  }
  end.reports_steps = steps_.reports_steps;
  end.steps_done = steps_.steps_done;
  if (options_.why_no_start) end.why_no_start = options_.why_no_start();
  decision_ = options_.restarts->decide(end);
  if (decision_.text.empty()) return;
  if (decision_.pause) return say(decision_.text);
  orders_.back().text += "; " + decision_.text;  // people paste the last line, so it names the failure too
}

}  // namespace lockstep::launcher
