// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/host_clocks.h"

#include <algorithm>
#include <iterator>

namespace lockstep::launcher {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// Length of the pieces in which two clocks are assumed to run at a constant rate: 50 ppm are 0.1 ms there.
constexpr std::int64_t kPiece = 2 * kSecond;

// Bounds on the difference of two clocks, from one bucket, at a time of the second clock.
struct Bounds {
  std::int64_t time = 0;
  std::int64_t least = 0;
  std::int64_t most = 0;
};

// Returns the bounds by time.
std::vector<Bounds> bounds_of(const Passages& common, const Passages& host) {
  std::vector<Bounds> all;
  for (const auto& [key, here] : host) {
    const auto there = common.find(key);
    if (there == common.end()) continue;
    all.push_back({.time = here.launched,
                   .least = here.launched - there->second.finished,
                   .most = here.finished - there->second.launched});
  }
  std::sort(all.begin(), all.end(), [](const Bounds& a, const Bounds& b) { return a.time < b.time; });
  return all;
}

}  // namespace

std::map<std::string, Passages> passages_by_host(std::span<const RunTrace> traces) {
  std::map<std::string, Passages> hosts;
  for (const RunTrace& trace : traces) {
    Passages& passages = hosts[trace.rank.identity.host];
    for (const trace::TracedStep& step : trace.rank.steps) {
      for (std::size_t i = 0; i < step.buckets.size(); ++i) {
        Passage& passage = passages[{trace.start, step.number, i}];
        passage.launched = std::max(passage.launched, step.buckets[i].launched);
        passage.finished = std::min(passage.finished, step.buckets[i].finished);
      }
    }
  }
  return hosts;
}

HostClocks::HostClocks(const std::vector<RunTrace>& traces) {
  if (traces.empty()) return;
  const auto hosts = passages_by_host(traces);
  const std::string& first = traces.front().rank.identity.host;
  std::map<std::string, std::int64_t> wall_clocks;
  for (const RunTrace& trace : traces) wall_clocks.emplace(trace.rank.identity.host, trace.rank.wall_clock);
  lines_[first] = {{}};
  for (const auto& [host, passages] : hosts) {
    if (host == first) continue;
    const auto all = bounds_of(hosts.at(first), passages);
    Line& line = lines_[host];
    std::int64_t widest = 0;
    for (auto begin = all.begin(); begin != all.end();) {
      const auto end =
          std::find_if(begin, all.end(), [begin](const Bounds& one) { return one.time >= begin->time + kPiece; });
      const auto by_least = [](const Bounds& a, const Bounds& b) { return a.least < b.least; };
      const auto by_most = [](const Bounds& a, const Bounds& b) { return a.most < b.most; };
      const Bounds& low = *std::max_element(begin, end, by_least);
      const Bounds& high = *std::min_element(begin, end, by_most);
      // Each bound is placed at its own time.
      line.push_back({low.time + (high.time - low.time) / 2, low.least + (high.most - low.least) / 2});
      widest = std::max(widest, (high.most - low.least) / 2);
      begin = end;
    }
    if (line.empty()) {
      line = {{.time = 0, .ahead = wall_clocks.at(first) - wall_clocks.at(host)}};
      unknown_.push_back(host);
      continue;
    }
    for (const Bounds& one : all) {  // The lines leave this error.
      const std::int64_t ahead = ahead_at(line, one.time);
      widest = std::max({widest, one.least - ahead, ahead - one.most});
    }
    error_ = std::max(error_, widest);
  }
}

std::int64_t HostClocks::ahead_at(const Line& line, std::int64_t time) {
  const auto after = std::ranges::lower_bound(line, time, {}, &Knot::time);
  if (after == line.begin()) return line.front().ahead;
  if (after == line.end()) return line.back().ahead;
  const Knot& before = *std::prev(after);
  const double part = static_cast<double>(time - before.time) / static_cast<double>(after->time - before.time);
  return before.ahead + static_cast<std::int64_t>(part * static_cast<double>(after->ahead - before.ahead));
}

std::int64_t HostClocks::common(const std::string& host, std::int64_t time) const {
  return time - ahead_at(lines_.at(host), time);
}

}  // namespace lockstep::launcher
