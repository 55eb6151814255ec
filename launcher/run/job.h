// SPDX-License-Identifier: Apache-2.0
// The ranks of a job on this host, from their start to the end of the last process that they left.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/signals.h"
#include "launcher/output/console.h"
#include "launcher/output/job_output.h"
#include "launcher/output/log_relay.h"
#include "launcher/placement/contract.h"
#include "launcher/process/guardian.h"
#include "launcher/process/life_pipe.h"
#include "launcher/process/memory_kills.h"
#include "launcher/run/job_tree.h"
#include "launcher/run/rank_ending.h"
#include "launcher/verdict/job_control.h"
#include "launcher/watch/rank_process.h"
#include "launcher/watch/rank_watch.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "runtime/job/step_board.h"
#include "runtime/membership/membership_table.h"
#include "runtime/net/open_files.h"

namespace lockstep::launcher {

struct JobOptions {
  std::string program = {};               // path
  std::vector<std::string> command = {};  // argv of every rank
  JobOutput* output = nullptr;            // destination of the ranks' output; outlives the job
  std::chrono::milliseconds grace{700};
  bool reads_input = true;  // rank 0 reads this process's standard input, unless that is a terminal
  std::chrono::nanoseconds stop_timeout = std::chrono::seconds(25);  // for ranks that save after another's failure
  bool is_crowded = false;       // the ranks' threads outnumber the cores, so a rank is not named as slow
  bool keep_last_lines = false;  // keeps the end of each rank's stderr that goes to the console
  Contract contract = {};
  // Returns the members that have registered with the job's store; empty if the store is on another host, or doesn't
  // answer.
  std::function<std::vector<membership::MemberView>()> members = {};
  // Asks another host's launcher for the stacks of a rank's process, as Order::Kind::take_stacks does. Called by any
  // thread. Either function may be null.
  std::function<void(int question, int rank, int pid)> ask_for_stacks = {};
};

// Driven by descriptors (signals, ends of processes, output) instead of polling. Main thread only; that thread must
// live as long as the ranks, which die with it.
class Job {
 public:
  // The references outlive the job. Throws SystemError.
  Job(JobOptions options, const Environment& environment, Console& console, Signals& signals, Guardian& guardian,
      LogRelay& log, const LifePipe& life, JobControl& control);

  // Starts the ranks and returns the job's exit code once none of its processes runs any more. May be called once.
  // After ExecError or SystemError all processes that it started have been ended.
  int run();

  // Returns the facts of a rank; for a rank on another host, only its number.
  RankFacts facts_of(int rank) const;

 private:
  using Clock = std::chrono::steady_clock;

  void start_ranks();
  void start_rank(int local_rank, int null_fd);
  // Makes the sinks of a rank's stream; `rank_end` becomes the end to which the rank writes.
  RankOutput output_of(int rank, Stream stream, UniqueFd& rank_end) const;
  void watch(int fd, std::uint32_t events, std::uint64_t what);
  void forget(int fd);
  void wait_for_events();
  void handle(std::uint64_t what);
  void read_output(RankOutput& output);
  void show_log();
  void pause_or_resume_reading();
  void on_signal(int signal);
  void on_rank_end(RankProcess& process);
  void reap_others();
  void check_timers();
  void look_at_ranks();
  bool finished();

  void obey(const Order& order);
  void take_stacks(const Order& order);
  RankFacts facts_of(const RankProcess& process) const;
  int local_rank_of(const RankProcess& process) const { return process.rank - options_.contract.own().first_rank; }
  int conclude();
  int report_leftovers();
  void signal_all(int signal);
  int running() const;

  JobOptions options_;
  const Environment& environment_;
  Console& console_;
  Signals& signals_;
  Guardian& guardian_;
  LogRelay& log_;
  const LifePipe& life_;
  JobControl& control_;
  JobTree tree_;
  std::string host_;
  UniqueFd epoll_;
  std::vector<RankProcess> ranks_;  // by local rank
  net::OpenFilesLimit open_files_;  // limit for the ranks; the launcher's own is higher
  // the ranks' pipes and the log are in epoll_; while false, they must not be registered
  bool reading_ = true;
  bool children_changed_ = true;  // set at the start, since children may have ended between two starts of the ranks

  const MemoryKills memory_kills_;
  StepBoard steps_;
  RankWatch watch_;
  std::optional<Deadline> look_at_;  // set while ranks run and none has failed
  int stop_signals_ = 0;             // signals to this process that asked to end the job
  RankEnding ending_;
};

}  // namespace lockstep::launcher
