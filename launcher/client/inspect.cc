// SPDX-License-Identifier: Apache-2.0
#include "launcher/client/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "launcher/base/system.h"
#include "launcher/client/top.h"
#include "launcher/process/process_table.h"
#include "launcher/process/stacks.h"
#include "runtime/base/text.h"
#include "runtime/membership/member_info.h"

namespace lockstep::launcher {
namespace {

// gdb reads the symbols of all loaded libraries, LibTorch's too.
constexpr std::chrono::seconds kStackLimit{30};
// Limits for the stacks of other hosts' ranks: launchers asked at the same time, the wait for one of them, and the wait
// for all of them.
constexpr std::size_t kAskedAtOnce = 16;
constexpr std::chrono::seconds kAnswersCome{20};
constexpr std::chrono::seconds kOtherHosts{60};

using Lines = std::vector<std::string>;

std::string indented(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += fmt::format("    {}\n", line);
  return text;
}

std::string here_of(pid_t pid) { return indented(threads_and_stacks(pid, Deadline::after(kStackLimit))); }

std::string describe(const ReportedRank& rank) {
  std::string text = fmt::format("\nrank {} (host {}, pid {}): {}", rank.rank, rank.host, rank.pid, rank.state);
  if (rank.collectives > 0) {
    text += fmt::format(", last collective {}", describe_collective(rank));
  }
  return text + "\n";
}

// Stacks of other hosts' ranks, by rank, from those hosts' launchers. A host that has not answered is not asked again.
class OthersStacks {
 public:
  OthersStacks(const FoundRun& run, const LiveReport& report, std::string_view here) : run_(run) {
    for (const ReportedRank& rank : report.ranks) {
      const bool has_gone = rank.state == "left" || rank.state == "lost";
      if (rank.host != here && !has_gone) others_.push_back(&rank);
    }
  }

  std::map<int, Lines> take() {
    const Deadline all = Deadline::after(kOtherHosts);
    for (std::size_t begin = 0; begin < others_.size(); begin += kAskedAtOnce) {
      const auto end = std::min(begin + kAskedAtOnce, others_.size());
      take_some(
          {others_.begin() + static_cast<std::ptrdiff_t>(begin), others_.begin() + static_cast<std::ptrdiff_t>(end)},
          all.sooner(kAnswersCome));
    }
    return std::move(taken_);
  }

 private:
  void take_some(const std::vector<const ReportedRank*>& ranks, const Deadline& deadline) {
    std::map<int, net::Connection> asked;
    for (const ReportedRank* rank : ranks) {
      if (deadline.expired() || silent_.contains(rank->host)) continue;
      asked[rank->rank] =
          net::Connection(ask(run_, {.what = RunRequest::What::stacks, .rank = rank->rank, .pid = rank->pid}));
    }
    for (const ReportedRank* rank : ranks) {
      Lines& lines = taken_[rank->rank];
      const auto launcher = asked.find(rank->rank);
      if (launcher == asked.end()) {
        lines.push_back(
            fmt::format("no stacks: the launcher of host {} was not asked: {}", rank->host,
                        silent_.contains(rank->host) ? "it has not answered before" : "other hosts' took too long"));
        continue;
      }
      const auto answer = read_answer(launcher->second, kMostStackLines * (kMostStackLineBytes + 1), deadline);
      if (answer && answer->starts_with(kStacksHeader)) {
        std::string_view rest = std::string_view(*answer).substr(kStacksHeader.size());
        while (!rest.empty()) lines.emplace_back(take_word(rest, '\n'));
        if (lines.empty()) lines.emplace_back("the process has ended");
      } else {
        silent_.insert(rank->host);
        lines.push_back(fmt::format("no stacks: the launcher of host {} has not answered within {} s", rank->host,
                                    kAnswersCome.count()));
      }
    }
  }

  const FoundRun& run_;
  std::vector<const ReportedRank*> others_;
  std::set<std::string> silent_;  // hosts
  std::map<int, Lines> taken_;
};

}  // namespace

void inspect(const FoundRun& run) {
  LiveReport report = ask_launcher(run);
  add_ranks_in_no_group(report);
  const std::string here = membership::ProcessInfo::of_this_process().host;
  std::string text = report.facts.node_rank == 0 ? as_screen(report, {}) : std::string();
  const auto others = OthersStacks(run, report, here).take();
  for (const ReportedRank& rank : report.ranks) {
    text += describe(rank);
    const auto other = others.find(rank.rank);
    if (other != others.end()) {
      text += indented(other->second);
    } else if (rank.host == here) {
      text += here_of(process_of_rank(report.facts.pid, rank.rank, rank.pid));
    }
  }
  write_to_stdout(text);
}

}  // namespace lockstep::launcher
