// SPDX-License-Identifier: Apache-2.0
// Which hosts take part in the next start of a job's ranks, as node rank 0's agent decides it: who has come, who has
// gone, and when there are enough. Pure.
//
// The first start waits for all hosts, or, where fewer may do (--nnodes 2:4), some time for more than the least. A
// later one waits for the hosts of the last one that have not gone, and needs the least, as the first did. Two halves
// of a job that can't see each other never both resume, since one of them alone has the store. Hosts that have come
// meanwhile are taken in as far as there is room.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/hosts/host_facts.h"

namespace lockstep::launcher {

class HostMeeting {
 public:
  // Hosts of a job: at least and at most so many.
  HostMeeting(int least, int most) : least_(least), most_(most) {}

  // A host is ready for start `start`, the job's first being 0; one that was not part of the last one, for any.
  void host_joined(HostFacts host, int start);
  // Its agent is not there any more.
  void host_left(int agent);
  bool has_gone(int agent) const { return gone_.contains(agent); }

  // The job continues without it, as if it had never been there; and without any agent that comes from its host.
  void exclude_host(int agent, const std::string& host);
  // Names of such hosts.
  const std::set<std::string>& left_out() const { return left_out_; }

  // The next start has enough hosts. `has_waited`: for more than the least.
  bool is_complete(bool has_waited) const;
  // At least the least is here, so that the wait for more begins.
  bool has_least() const { return has(least_); }
  // The hosts of the next start, by node rank, which is filled in.
  std::vector<HostFacts> hosts() const;
  // The next start has this plan.
  void begin(const RankMap& hosts);

  int start() const { return start_; }
  // Hosts that each start needs.
  int needed() const { return least_; }
  // Hosts that a later start needs and that have gone, whoever comes in their place.
  int missing() const;
  // A host waits that could be taken in.
  bool has_newcomer() const;

 private:
  struct Host {
    HostFacts facts;
    int start = 0;
  };
  bool was_there(int agent) const { return last_.contains(agent); }
  bool is_ready(const Host& host) const { return !was_there(host.facts.agent) || host.start == start_; }
  // So many hosts are ready. It is asked as each of them comes.
  bool has(int count) const;
  // By their last node rank, then by agent.
  std::vector<HostFacts> ready() const;

  int least_;
  int most_;
  int start_ = 0;
  std::map<int, Host> here_;  // by agent
  std::map<int, int> last_;   // node ranks of the last start, by agent; of those that have gone too
  std::set<int> gone_;        // agents
  std::set<std::string> left_out_;
};

}  // namespace lockstep::launcher
