// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/job_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "launcher/base/amounts.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/signal_name.h"

namespace lockstep::launcher {
namespace {

std::string who(const RankFacts& rank, const std::string& how) {
  if (rank.pid == 0) return fmt::format("rank {} (host {}) {}", rank.rank, rank.host, how);
  return fmt::format("rank {} (host {}, pid {}) {}", rank.rank, rank.host, rank.pid, how);
}

// Returns true if the cause is the launcher's report on a rank that ended while others waited for it at the start.
bool has_not_come(const Cause* cause) {
  return cause != nullptr && cause->reporter < 0 && cause->kind == Cause::Kind::left;
}

// Describes the ending of the first failure, or why a running rank counts as failed.
std::string how_it_failed(const RootCause& root_cause) {
  const Cause* const cause = root_cause.cause();
  if (const auto& ending = root_cause.ending()) {
    if (has_not_come(cause)) return fmt::format("{} before it came to init_process_group", ending->describe());
    return ending->ok() ? "exited with code 0 while the others still needed it" : ending->describe();
  }
  if (cause != nullptr && cause->reporter < 0) return "did not continue";
  if (cause == nullptr || cause->kind == Cause::Kind::timeout) return "did not arrive where the others waited for it";
  return "has failed and still runs";
}

std::string all_failed(const RootCause& root_cause) {
  return fmt::format("all {} ranks failed with the same error", root_cause.same_error().size());
}

std::string describe_memory_kills(const RankFacts& rank) {
  return fmt::format(
      "memory ran out: the kernel has killed {} of this control group on host {} since the start "
      "(oom_kill); raise the container's memory limit, or give each rank less to hold",
      count_of(rank.memory_kills, "process", "es"), rank.host);
}

}  // namespace

std::string ending_of_others(int others) {
  return others == 0   ? ""
         : others == 1 ? "; ending the other rank"
                       : fmt::format("; ending the other {} ranks", others);
}

FailureReport describe_failure(const RootCause& root_cause, const RankFacts& rank, std::chrono::duration<double> age,
                               int running) {
  FailureReport report;
  const Cause* const cause = root_cause.cause();
  if (root_cause.disagreement() != nullptr) {
    const bool is_absent = root_cause.absent_host() != nullptr;
    report.message = (is_absent ? "a host is missing" : "the ranks disagree") + ending_of_others(running);
    return report;
  }
  // For a rank that still runs, or ended before it joined, the report of the store or the launcher is the whole
  // message.
  const bool is_told = cause != nullptr && cause->reporter < 0 && (!root_cause.ending() || has_not_come(cause));
  report.message = (is_told ? cause->text
                            : fmt::format("{} {:.1f} s after the start",
                                          root_cause.is_on_all_ranks() ? all_failed(root_cause)
                                                                       : who(rank, how_it_failed(root_cause)),
                                          age.count())) +
                   ending_of_others(root_cause.ending() ? running : running - 1);
  if (root_cause.ending() && (!is_told || rank.memory_kills > 0)) {
    const std::string hint = rank.memory_kills > 0 ? describe_memory_kills(rank) : root_cause.ending()->hint();
    if (!hint.empty()) report.details.push_back("  hint: " + hint);
  }
  // The ending that the launcher saw itself says more than the report that a connection has ended.
  const bool is_hearsay = cause != nullptr && cause->reporter < 0 && cause->kind == Cause::Kind::lost &&
                          root_cause.ending() && !root_cause.ending()->has_no_code;
  if (rank.steps_done.value_or(0) > 0) {
    report.details.push_back(fmt::format("  {} done", count_of(*rank.steps_done, "step")));
  }
  // The summary has the rank's own report.
  if (cause != nullptr && !is_told && !is_hearsay && root_cause.own_error() == nullptr) {
    const std::string who_says = cause->reporter < 0 ? "the store" : fmt::format("rank {}", cause->reporter);
    // A heartbeat is up to half a second old, and its step is counted from 0 within the start.
    const std::string when =
        cause->step < 0 || rank.steps_done ? "" : fmt::format(", at step {} or later", cause->step);
    report.details.push_back(fmt::format("  {}{}: {}", who_says, when, cause->text));
  }
  if (!root_cause.circle().empty()) {
    report.details.push_back(fmt::format("  {} accuse each other: each may have failed first; look at their own output",
                                         rendezvous::describe_ranks(root_cause.circle())));
  }
  auto alike = root_cause.same_error();
  std::erase(alike, rank.rank);
  auto others = root_cause.other_roots();
  std::erase_if(others, [&](int other) { return std::ranges::find(alike, other) != alike.end(); });
  if (!others.empty()) {
    report.details.push_back(fmt::format("  {} failed at the same time: see {} own output",
                                         rendezvous::describe_ranks(others), others.size() == 1 ? "its" : "their"));
  }
  if (!alike.empty() && !root_cause.is_on_all_ranks()) {
    report.details.push_back(fmt::format("  {} failed with the same error", rendezvous::describe_ranks(alike)));
  }
  if (!rank.last_lines.empty()) {
    report.details.push_back(fmt::format("  the end of {}:", rank.log.empty() ? "its stderr" : rank.log));
  } else if (!rank.log.empty()) {
    report.details.push_back(fmt::format("  it wrote nothing to {}", rank.log));
  }
  for (const auto& line : rank.last_lines) report.details.push_back("  | " + line);
  return report;
}

std::string describe_later_end(const RankEnd& rank, int stop_signal) {
  return fmt::format("{} after {}", who(rank, rank.ending.describe()), signal_name(stop_signal));
}

std::string summarise_failure(const RootCause& root_cause, const RankFacts& rank, int killed,
                              std::chrono::milliseconds grace) {
  const Cause* const cause = root_cause.cause();
  std::string why;
  if (root_cause.own_error() != nullptr) {
    why = ": " + own_words(*cause);
  } else if (cause != nullptr && !root_cause.ending()) {
    why = ": " + cause->text;
  } else if (rank.memory_kills > 0) {
    why = ": memory ran out";
  }
  std::string rest;
  const int others = root_cause.others();
  if (others > 0) rest = fmt::format("; {} ended after it", count_of(others, "other rank"));
  if (killed > 0) rest += fmt::format(" ({} of them by SIGKILL, {} ms after SIGTERM)", killed, grace.count());
  if (root_cause.disagreement() != nullptr) {
    return fmt::format("{}{}; exit code {}", root_cause.absent_host() != nullptr ? "" : "the ranks disagree: ",
                       root_cause.disagreement()->text, root_cause.exit_code());
  }
  if (root_cause.is_on_all_ranks()) {
    return fmt::format("{}{}; exit code {}", all_failed(root_cause), why, root_cause.exit_code());
  }
  return fmt::format("rank {} failed first: it {}{}{}; exit code {}", *root_cause.first_failure(),
                     how_it_failed(root_cause), why, rest, root_cause.exit_code());
}

}  // namespace lockstep::launcher
