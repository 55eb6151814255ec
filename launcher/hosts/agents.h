// SPDX-License-Identifier: Apache-2.0
// The agents of a job, one for each host, at the job's one store: how they meet, and how they talk afterwards.
//
// An agent is the launcher on its host. Node rank 0's serves the store (launcher/run/run_stores.h) and gives the
// verdict; the others are members of its membership, so that the end of one is noticed at once. They write messages
// into numbered keys that node rank 0 reads; it writes into numbered keys that all others read.
//
// Threads: the main thread, but for what the news' queue takes.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "launcher/hosts/agent_message.h"
#include "launcher/hosts/host_facts.h"
#include "launcher/waking_queue.h"
#include "lockstep/base/deadline.h"
#include "runtime/membership/member_link.h"
#include "runtime/membership/membership_table.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/endpoint.h"

namespace lockstep::launcher {

// Of the agents' membership at the job's store.
inline constexpr std::string_view kAgentScope = "agents";

// The store does not answer any more: "its launcher (pid 4711) has ended".
struct StoreGone {
  std::string how = {};
};
// Of the store's members (at its host alone), of another agent, or of the store.
using AgentNews = std::variant<membership::MemberNews, AgentMessage, StoreGone>;

class Agents {
 public:
  struct Options {
    store::Endpoint endpoint = {};
    int nodes = 2;
    std::optional<int> node_rank = {};  // nothing: the store gives one
    bool serves = false;                // this process has the store: node rank 0
    bool detect_silence = true;         // of hosts and of the store (LOCKSTEP_LIVENESS)
    Deadline deadline = Deadline::never();
  };
  // Comes to the store, and takes its node rank there. `news` outlives it. Throws Timeout (nobody serves it),
  // StoreError (another secret or run; the node rank is another's; all hosts have come already), SystemError.
  Agents(Options options, WakingQueue<AgentNews>& news);
  // Leaves in order.
  ~Agents();
  Agents(const Agents&) = delete;
  Agents& operator=(const Agents&) = delete;

  int node_rank() const { return node_rank_; }
  // Tells the others of this host and returns what they all do, which node rank 0 decides once all have come or the
  // deadline has passed. `draft`: its plan but for the hosts; the others' is not looked at. Throws StoreError.
  JobPlan meet(HostFacts own, JobPlan draft);
  // From now on the others' messages come as news.
  void start();
  // To node rank 0; from there to all others. What can't be sent for want of the store is dropped: that is news too.
  void send(const AgentMessage& message);

 private:
  JobPlan await_hosts(JobPlan draft);
  std::vector<HostFacts> hosts_here();
  void take_node_rank();
  void on_event(const membership::MemberEvent& event);
  void read_others();
  void read_first();
  void pass_on(const std::string& key, std::string_view text);

  Options options_;
  WakingQueue<AgentNews>& news_;
  store::TcpStore store_;
  store::TcpStore inbox_;  // whose waits end with this object
  int node_rank_ = 0;
  std::int64_t sent_ = 0;  // by node rank 0
  std::unique_ptr<membership::MemberLink> link_;
  std::atomic<bool> leaving_{false};
  std::thread reader_;
};

}  // namespace lockstep::launcher
