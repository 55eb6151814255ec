// SPDX-License-Identifier: Apache-2.0
// The launcher's server for `lockstep ps`, `top`, `logs` and `stop` (run_socket.h), and the source of --metrics-port.
//
// The server has a thread of its own, so it answers while the main thread waits for a slow disk, and a slow client
// delays nobody: a slow reader of the log misses lines, and is told how much (launcher/output/recent_lines.h).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "launcher/live/live_report.h"
#include "launcher/live/run_socket.h"
#include "launcher/output/recent_lines.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/event_loop.h"

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
  struct Session {
    UniqueFd fd;
    std::string request = {};  // received so far
    bool answered = false;     // `out` is being sent, and then the bytes that follow it
    std::string out = {};
    int question = 0;  // the question whose answer is awaited; 0: none
    bool reads_log = false;
    bool follows = false;
    RecentLines::Position position = 0;  // in the log, behind the bytes in `out`
    RecentLines::Position until = 0;     // end of a log that the client does not follow
  };

  void serve();
  // Ends all sessions, since an error in one of them must not end the launcher. Logs the first error.
  void on_error(const std::exception& error);
  void accept();
  void on_event(int fd, std::uint32_t events);
  // The next two return false once the session is over.
  bool read_request(Session& session);
  bool send(Session& session);
  void answer(Session& session, const RunRequest& request);
  void ask_for_stacks(Session& session, const RunRequest& request) EXCLUDES(mutex_);
  bool take_more(Session& session);
  void close_session(int fd);
  void pump_followers();
  void end();
  RunFacts facts_now() const EXCLUDES(mutex_);
  void look() EXCLUDES(mutex_);

  const std::function<void()> stop_;
  RecentLines& lines_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  const uid_t user_;
  std::string name_;
  UniqueFd listener_;
  net::EventLoop loop_;
  mutable Mutex mutex_;
  RunFacts facts_ GUARDED_BY(mutex_);
  Members members_ GUARDED_BY(mutex_);
  AskForStacks ask_ GUARDED_BY(mutex_);
  LiveRun live_ GUARDED_BY(mutex_);
  std::map<int, Session> sessions_;  // by descriptor
  std::atomic<int> stops_{0};
  int questions_ = 0;
  bool ending_ = false;
  bool has_failed_ = false;
  std::atomic<bool> is_waking_{false};  // the loop will look for new lines
  std::thread thread_;                  // declared last: the thread uses the other members
};

}  // namespace lockstep::launcher
