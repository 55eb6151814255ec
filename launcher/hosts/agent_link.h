// SPDX-License-Identifier: Apache-2.0
// The agents of a job, one on each host, which meet at the job's one store and exchange messages from then on.
//
// An agent is the launcher on its host. Node rank 0's agent serves the store (launcher/run/run_stores.h) and gives the
// verdict. All are members of one scope in the store's membership, so that the end of one is noticed at once. The
// others send node rank 0's agent messages over their links; it says its words to all of the scope. The plan of each
// start of the job's ranks is in the store, where hosts that come late find it too, and a word says that there is
// another one.
//
// Threads: the main thread; only the queue of news takes items from other threads.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "launcher/base/signals.h"
#include "launcher/base/waking_queue.h"
#include "launcher/hosts/agent_message.h"
#include "launcher/hosts/host_facts.h"
#include "launcher/hosts/host_meeting.h"
#include "lockstep/base/deadline.h"
#include "runtime/base/event_fd.h"
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
  std::string how = {};      // how the store's host ended: "its launcher (pid 4711) has ended"
  bool is_expelled = false;  // this host was silent, and the job continued without it
};
// `lockstep inspect` on the store's host asks for the stacks of another host's rank. The fields are those of Order.
struct StacksAsked {
  int question = 1;
  int rank = 0;
  int pid = 0;
};
inline constexpr std::string_view kStoodStill =
    "this launcher has stood still, and the job continued without this host";
// News of the store's members (at its host alone), of another agent, of the store, or of a client of this process.
using AgentNews = std::variant<membership::MemberNews, AgentWord, StoreGone, StacksAsked>;
// Puts news of the store's members for node rank 0 into `queue`; called by the server of the job's store.
void put_news(WakingQueue<AgentNews>& queue, const membership::MemberNews& news);

class AgentLink {
 public:
  struct Options {
    store::Endpoint endpoint = {};
    int least = 2;              // the fewest hosts of the job
    int most = 2;               // the most hosts; if more than the fewest, hosts may come and go
    bool takes_spares = false;  // a surplus host waits until another one is lost
    bool can_replace = true;    // a new host may replace a lost one
    int requeue_exit_code = kExitRequeue;
    bool serves = false;  // this process has the store: node rank 0
    // Limit for the silence of a host or of the store (LOCKSTEP_LIVENESS); nullopt: no limit.
    std::optional<std::chrono::nanoseconds> silence = std::chrono::seconds(2);
    std::chrono::nanoseconds meet_timeout = std::chrono::seconds(300);  // for each start
    // at the first start, for more than the fewest hosts
    std::chrono::nanoseconds more_hosts = std::chrono::seconds(30);
    Deadline deadline = Deadline::never();  // for connecting to the store
    // prints a message about the hosts that are missing
    std::function<void(const std::string&)> say = {};
    Signals* signals = nullptr;  // a signal that asks to end ends the wait for a later start; outlives the agents
  };
  // Connects to the store. `news` outlives it. Throws Timeout (there is no store at the endpoint), StoreError (the
  // store has another secret or run), SystemError.
  AgentLink(Options options, WakingQueue<AgentNews>& news);
  // Leaves the membership in order; if the host is cut off, the others count it as lost.
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  // Reports this host to the others and returns the plan of the next start, the same on all hosts, which node rank 0
  // decides. `draft` is node rank 0's plan without the hosts; the other hosts' drafts are ignored. Throws StoreError if
  // the store is gone, or the job has all of its hosts without this one.
  JobPlan meet(HostFacts own, JobPlan draft);
  // There will be no next start. Node rank 0 calls it with the `plan` for the agents that wait for one, which has the
  // reason and no hosts; other agents' calls have no effect.
  void cancel_next_start(JobPlan plan);
  // True if this host may join again: the store's host stopped answering, and has not been seen to end; or this host
  // did, and was taken for lost.
  bool is_cut_off() const { return is_cut_off_; }
  // Cancels the next start on all hosts, because this process got `signal` between two starts. Returns the plan for
  // all.
  JobPlan stop(int signal);
  // Address to which the ranks of this host report for the job's membership; empty: the store, which is in this
  // process.
  std::string relay_address() const { return relay_ ? relay_->address().to_string() : std::string(); }
  // The job's store, while it can be reached.
  store::Store& store() { return store_; }
  // Node rank of this host in the last plan.
  int node_rank() const { return node_rank_; }
  // Sends a message to node rank 0; from node rank 0, to all others. A message that can't be sent because the store is
  // gone is dropped; the loss of the store arrives as news.
  void send(const AgentMessage& message);

  // For node rank 0 only. Messages that it receives while the ranks run:
  void host_joined(const HostJoined& joined, int start);
  // An agent was lost, or has reported that it can't hear from this one.
  void host_left(const Cause& cause);
  // The job continues permanently without this host. Call it between two starts.
  void exclude_host(const HostSlots& host) { meeting_.exclude_host(host.agent, host.name); }
  // The next start needs a host that this one does not have, for the reason in `why`. Call it between two starts.
  void await_newcomer(const std::string& why) {
    meeting_.await_newcomer();
    awaits_newcomer_ = why;
  }
  // Returns why there can be no next start: a host is lost, and no other will replace it. Usually empty.
  std::string why_no_start() const;
  // True if hosts may come and go, and a host waits that could be added.
  bool has_newcomer() const { return options_.most > options_.least && meeting_.has_newcomer(); }

 private:
  JobPlan await_hosts(JobPlan draft);
  std::optional<JobPlan> take_news_of_meeting();
  void publish(JobPlan& plan);
  // Lists the hosts of the last start that are gone, for messages; empty before the first start.
  std::string lost_hosts() const;
  JobPlan await_plan();
  // Handles a plan whose start this host is not part of. Throws StoreError if the host can't be part of a later start;
  // returns the plan to follow if the job has excluded it; else nullopt.
  std::optional<JobPlan> stand_by(const JobPlan& plan);
  JobPlan read_plan(const Deadline& deadline);
  std::optional<int> asked_to_end();
  JobPlan stopped_by(int signal, std::string_view where) const;
  void on_event(const membership::MemberEvent& event);
  void on_word(std::string_view text);

  Options options_;
  WakingQueue<AgentNews>& news_;
  store::TcpStore store_;
  int agent_ = 0;  // number of this agent; 0: node rank 0's
  int node_rank_ = 0;
  bool is_new_ = true;           // this host has not joined a start yet
  HostFacts own_;                // facts with which this host joined last
  std::atomic<int> start_{0};    // number of the start that is next or under way
  bool has_started_ = false;     // the plan of start_ included this host
  HostMeeting meeting_;          // used on node rank 0
  RankMap last_hosts_;           // hosts of the last plan; used on node rank 0
  std::string awaits_newcomer_;  // why the next start needs another host; empty: it does not
  // the launcher of a host that is gone has reported that the host rejoins
  bool returns_ = false;
  std::unique_ptr<membership::MemberRelay> relay_;  // relays this host's ranks over the link; null at the store's host
  std::atomic<bool> is_cut_off_{false};
  EventFd plan_made_;  // there is another plan, or the store is gone
  std::unique_ptr<membership::MemberLink> link_;
};

}  // namespace lockstep::launcher
