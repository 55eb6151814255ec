// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_meeting.h"

#include <algorithm>
#include <utility>

namespace lockstep::launcher {

void HostMeeting::host_joined(HostFacts host, int start) {
  if (gone_.contains(host.agent) || (!was_there(host.agent) && left_out_.contains(host.name))) return;
  const int agent = host.agent;
  here_.insert_or_assign(agent, Host{std::move(host), start});
}

void HostMeeting::host_left(int agent) {
  gone_.insert(agent);
  here_.erase(agent);
}

void HostMeeting::exclude_host(int agent, const std::string& host) {
  left_out_.insert(host);
  last_.erase(agent);
  host_left(agent);
}

std::vector<HostFacts> HostMeeting::ready() const {
  std::vector<HostFacts> hosts;
  for (const auto& [agent, host] : here_) {
    if (is_ready(host)) hosts.push_back(host.facts);
  }
  std::stable_sort(hosts.begin(), hosts.end(), [this](const HostFacts& left, const HostFacts& right) {
    const auto place = [this](const HostFacts& host) {
      const auto at = last_.find(host.agent);
      return at == last_.end() ? most_ : at->second;
    };
    return place(left) < place(right);
  });
  return hosts;
}

bool HostMeeting::has(int count) const {
  if (static_cast<int>(here_.size()) < count) return false;
  return std::count_if(here_.begin(), here_.end(), [this](const auto& host) { return is_ready(host.second); }) >= count;
}

bool HostMeeting::is_complete(bool has_waited) const {
  if (static_cast<int>(here_.size()) < needed() || (awaits_newcomer_ && !has_newcomer())) return false;
  for (const auto& [agent, node] : last_) {
    if (gone_.contains(agent)) continue;
    const auto host = here_.find(agent);
    if (host == here_.end() || !is_ready(host->second)) return false;
  }
  return has(needed()) && (start_ > 0 || has_waited || has(most_));
}

int HostMeeting::missing() const {
  const int awaited = awaits_newcomer_ && !has_newcomer() ? 1 : 0;
  return start_ == 0 ? 0 : std::max(awaited, needed() - static_cast<int>(here_.size()));
}

std::vector<HostFacts> HostMeeting::hosts() const {
  std::vector<HostFacts> hosts = ready();
  if (static_cast<int>(hosts.size()) > most_) hosts.resize(static_cast<std::size_t>(most_));
  give_node_ranks(hosts, start_ == 0);
  return hosts;
}

void HostMeeting::begin(const RankMap& hosts) {
  last_.clear();
  for (std::size_t node = 0; node < hosts.size(); ++node) last_[hosts[node].agent] = static_cast<int>(node);
  awaits_newcomer_ = false;
  ++start_;
}

bool HostMeeting::has_newcomer() const {
  if (static_cast<int>(last_.size()) >= most_) return false;
  return std::any_of(here_.begin(), here_.end(), [this](const auto& host) { return !was_there(host.first); });
}

}  // namespace lockstep::launcher
