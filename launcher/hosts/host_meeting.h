// SPDX-License-Identifier: Apache-2.0
// The hosts that take part in the next start of a job's ranks, as node rank 0's agent decides it from the hosts that
// have joined and left. Pure.
//
// The first start waits for all hosts, or, if fewer suffice (--nnodes 2:4), for a limited time for more than the least.
// A later start waits for those hosts of the last one that are not gone, and needs the least, as the first did. Two
// halves of a job that can't see each other never both resume, since only one of them has the store. Hosts that have
// joined meanwhile are added as far as there is room.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/hosts/host_facts.h"

namespace lockstep::launcher {

class HostMeeting {
 public:
  // `least` and `most` are the fewest and the most hosts of the job.
  HostMeeting(int least, int most) : least_(least), most_(most) {}

  // A host is ready for start `start`, counted from 0; a host that was not part of the last start is ready for any.
  void host_joined(HostFacts host, int start);
  // The host's agent is gone.
  void host_left(int agent);
  bool has_gone(int agent) const { return gone_.contains(agent); }

  // The job continues without the host, as if it had never joined, and without any agent that comes from `host`.
  void exclude_host(int agent, const std::string& host);
  // The next start needs a host that was not part of the last one.
  void await_newcomer() { awaits_newcomer_ = true; }

  // Names of the excluded hosts.
  const std::set<std::string>& left_out() const { return left_out_; }

  // True if the next start has enough hosts. `has_waited`: the wait for more than the least is over.
  bool is_complete(bool has_waited) const;
  // True if at least the fewest hosts are ready, so that the wait for more begins.
  bool has_least() const { return has(least_); }
  // Returns the hosts of the next start, by node rank, which it assigns.
  std::vector<HostFacts> hosts() const;
  // Begins the next start, whose plan has these hosts.
  void begin(const RankMap& hosts);

  int start() const { return start_; }
  // The number of hosts that each start needs.
  int needed() const { return least_; }
  // The number of hosts that a later start lacks because others are gone, or awaited; any host may take their places.
  int missing() const;
  // True if a host waits that could be added.
  bool has_newcomer() const;

 private:
  struct Host {
    HostFacts facts;
    int start = 0;
  };
  bool was_there(int agent) const { return last_.contains(agent); }
  bool is_ready(const Host& host) const { return !was_there(host.facts.agent) || host.start == start_; }
  // True if `count` hosts are ready. It is asked each time that a host joins.
  bool has(int count) const;
  // Returns the ready hosts by their last node rank, then by agent.
  std::vector<HostFacts> ready() const;

  int least_;
  int most_;
  int start_ = 0;
  std::map<int, Host> here_;  // by agent
  std::map<int, int> last_;   // node ranks in the last start, by agent; gone hosts are included
  std::set<int> gone_;        // agents that are gone
  std::set<std::string> left_out_;
  bool awaits_newcomer_ = false;
};

}  // namespace lockstep::launcher
