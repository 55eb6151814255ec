// SPDX-License-Identifier: Apache-2.0
// The agents of a job, one for each host, at the job's one store: how they meet, and how they talk afterwards.
//
// An agent is the launcher on its host. Node rank 0's serves the store (launcher/run/run_stores.h) and gives the
// verdict; the others are members of its membership, so that the end of one is noticed at once, and send it messages
// over their links. It writes into numbered keys that all others read. For each start of the job's ranks it writes a
// plan.
//
// Threads: the main thread, but for what the news' queue takes.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

#include "launcher/base/signals.h"
#include "launcher/base/waking_queue.h"
#include "launcher/hosts/agent_message.h"
#include "launcher/hosts/host_facts.h"
#include "launcher/hosts/host_meeting.h"
#include "lockstep/base/deadline.h"
#include "runtime/job/exit_code.h"
#include "runtime/membership/member_link.h"
#include "runtime/membership/member_relay.h"
#include "runtime/membership/membership_table.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/endpoint.h"

namespace lockstep::launcher {

// The scope of the agents' membership at the job's store.
inline constexpr std::string_view kAgentScope = "agents";

// This host is not part of the job any more.
struct StoreGone {
  std::string how = {};      // of the store's host: "its launcher (pid 4711) has ended"
  bool is_expelled = false;  // this host was silent, and the job continued without it
};
// `lockstep inspect` on the store's host, which asks for the stacks of another host's rank. As Order has them.
struct StacksAsked {
  int question = 1;
  int rank = 0;
  int pid = 0;
};
inline constexpr std::string_view kStoodStill =
    "this launcher has stood still, and the job continued without this host";
// News of the store's members (at its host alone), of another agent, of the store, or of a client of this process.
using AgentNews = std::variant<membership::MemberNews, AgentWord, StoreGone, StacksAsked>;
// For the server of the job's store: what its members have for node rank 0.
void put_news(WakingQueue<AgentNews>& queue, const membership::MemberNews& news);

class Agents {
 public:
  struct Options {
    store::Endpoint endpoint = {};
    int least = 2;              // hosts of the job
    int most = 2;               // more than the least: they may come and go
    bool takes_spares = false;  // a host that is one too many waits until one is lost
    bool can_replace = true;    // a host may come in the place of one that is lost
    int requeue_exit_code = kExitRequeue;
    bool serves = false;  // this process has the store: node rank 0
    // The longest silence of a host or of the store that is borne (LOCKSTEP_LIVENESS); nothing: any.
    std::optional<std::chrono::nanoseconds> silence = std::chrono::seconds(2);
    std::chrono::nanoseconds meet_timeout = std::chrono::seconds(300);  // of each start
    std::chrono::nanoseconds more_hosts = std::chrono::seconds(30);     // at the first one, for more than the least
    Deadline deadline = Deadline::never();                              // for coming to the store
    std::function<void(const std::string&)> say = {};                   // for people: what is waited for
    Signals* signals = nullptr;  // one that asks to end ends a wait for a later start; outlives the agents
  };
  // Comes to the store. `news` outlives it. Throws Timeout (nobody serves it), StoreError (another secret or run),
  // SystemError.
  Agents(Options options, WakingQueue<AgentNews>& news);
  // Leaves in order; if it is cut off, as one that is lost.
  ~Agents();
  Agents(const Agents&) = delete;
  Agents& operator=(const Agents&) = delete;

  // Tells the others of this host and returns what they all do at the next start, which node rank 0 decides. `draft`:
  // its plan but for the hosts; the others' is not looked at. Throws StoreError: the store has gone, or the job has all
  // of its hosts without this one.
  JobPlan meet(HostFacts own, JobPlan draft);
  // Node rank 0's: there will be no next start. Who waits for it gets `plan`, which has the reason and no hosts. Of the
  // others it is not looked at.
  void cancel_next_start(JobPlan plan);
  // This host may join again: the store's host had stopped answering, and has not been seen to end; or it was this one
  // that had, and was taken for lost.
  bool is_cut_off() const { return is_cut_off_; }
  // This process has got `signal` between two starts: there will be no next one, on any host. What all do then.
  JobPlan stop(int signal);
  // Where the ranks of this host are to send what they say to the job's membership; empty: to the store, which is here.
  std::string relay_address() const { return relay_ ? relay_->address().to_string() : std::string(); }
  // The job's, while it can be reached.
  store::Store& store() { return store_; }
  // In the last plan.
  int node_rank() const { return node_rank_; }
  // To node rank 0; from there to all others. What can't be sent for want of the store is dropped: that is news too.
  void send(const AgentMessage& message);

  // Node rank 0's alone. What it hears while the ranks run:
  void host_joined(const HostJoined& joined, int start);
  // An agent was lost, or told that it can't hear of this one.
  void host_left(const Cause& cause);
  // The job continues without this host, for good. Call it between two starts.
  void exclude_host(const HostSlots& host) { meeting_.exclude_host(host.agent, host.name); }
  // Hosts may come and go, and one waits that could be taken in.
  bool has_newcomer() const { return options_.most > options_.least && meeting_.has_newcomer(); }

 private:
  JobPlan await_hosts(JobPlan draft);
  std::optional<JobPlan> take_news_of_meeting();
  void publish(JobPlan& plan);
  // Those of the last start that have gone, for messages; empty before the first one.
  std::string lost_hosts() const;
  JobPlan await_plan();
  // This host is not part of the start with that plan. Throws StoreError if it can't be of a later one; returns what it
  // does if the job has left it out.
  std::optional<JobPlan> stand_by(const JobPlan& plan);
  std::string read_plan(const Deadline& deadline);
  std::optional<int> asked_to_end();
  JobPlan stopped_by(int signal, std::string_view where) const;
  void on_event(const membership::MemberEvent& event);
  void begin_reading();

  Options options_;
  WakingQueue<AgentNews>& news_;
  store::TcpStore store_;
  store::TcpStore inbox_;  // whose waits end with this object
  int agent_ = 0;          // this one's number
  int node_rank_ = 0;
  bool is_late_ = false;                            // the job's ranks ran when this host came
  HostFacts own_;                                   // as it came last
  int start_ = 0;                                   // of the job's starts the one that is next, or is under way
  bool has_started_ = false;                        // this host was in the plan of start_
  int next_word_ = 1;                               // of node rank 0
  HostMeeting meeting_;                             // at node rank 0
  RankMap last_hosts_;                              // of the last plan; likewise
  bool returns_ = false;                            // the launcher of a host that has gone tells that it comes back
  std::unique_ptr<membership::MemberRelay> relay_;  // of this host's ranks, over the link
  std::unique_ptr<membership::MemberLink> link_;
  std::atomic<bool> leaving_{false};
  std::atomic<bool> is_cut_off_{false};
  std::thread reader_;
};

}  // namespace lockstep::launcher
