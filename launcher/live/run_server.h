// SPDX-License-Identifier: Apache-2.0
// The launcher's server for `lockstep ps`, `top`, `logs` and `stop` (run_socket.h), and the source of --metrics-port.
//
// The server has a thread of its own, so it answers while the main thread waits for a slow disk, and a slow client
// delays nobody: a slow reader of the log misses lines, and is told how much (launcher/output/recent_lines.h).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/live/live_report.h"
#include "launcher/live/request_server.h"
#include "launcher/live/run_socket.h"
#include "launcher/output/recent_lines.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

class RunServer {
 public:
  // Only this process's user may connect. `stop` asks the job to stop, as SIGTERM to the launcher does; the server's
  // thread calls it. `lines` outlives the server. Throws SystemError.
  RunServer(std::string run_id, std::function<void()> stop, RecentLines& lines);
  // Sends followers the lines that they lack, for a second at most, and ends.
  ~RunServer();
  RunServer(const RunServer&) = delete;
  RunServer& operator=(const RunServer&) = delete;

  using Members = std::function<std::vector<membership::MemberView>()>;
  using AskForStacks = std::function<void(int question, int rank, int pid)>;
  // Sets the source of later answers. `facts` has everything except age, step and stops. `members` returns the members
  // that have registered with the job's store; null if the store is on another host. `ask` requests a rank's stacks
  // from another host, which arrive through stacks_came(); null if there is no other host. The server's thread calls
  // both.
  void set_run(RunFacts facts, Members members, AskForStacks ask = {}) EXCLUDES(mutex_);
  // After it has returned, the `members` and `ask` that were given to set_run() are not called any more.
  void forget_members() EXCLUDES(mutex_);
  // Any thread. The client that asked the question may be gone.
  void stacks_came(int question, std::vector<std::string> lines);

  // Returns the answer to `lockstep top`. Any thread.
  LiveReport report() const EXCLUDES(mutex_);

  const std::string& socket_name() const { return name_; }

 private:
  using Stacks = std::optional<std::string>;

  // The server's thread calls the next five.
  UniqueFd accept(int listener) const;
  RequestServer::Answer answer(std::string_view line);
  RequestServer::Answer log_of(const RunRequest& request) const;
  RequestServer::Answer stacks_of(const RunRequest& request) EXCLUDES(mutex_);
  void look() EXCLUDES(mutex_);
  RunFacts facts_now() const EXCLUDES(mutex_);

  const std::function<void()> stop_;
  RecentLines& lines_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  const uid_t user_;
  std::string name_;
  mutable Mutex mutex_;
  RunFacts facts_ GUARDED_BY(mutex_);
  Members members_ GUARDED_BY(mutex_);
  AskForStacks ask_ GUARDED_BY(mutex_);
  LiveRun live_ GUARDED_BY(mutex_);
  std::atomic<int> stops_{0};
  // The server's thread: the stacks that clients wait for, by question.
  std::map<int, std::weak_ptr<Stacks>> awaited_;
  int questions_ = 0;
  RequestServer server_;  // declared last: its thread uses the other members
};

}  // namespace lockstep::launcher
