// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/auditor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/comm/values.h"
#include "lockstep/data/sampler.h"
#include "lockstep/job/cause.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/hash.h"
#include "runtime/base/logging.h"
#include "runtime/comm/disagreement.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/roster_cause.h"
#include "runtime/ddp/equality/gather_numbers.h"
#include "runtime/job/exit_code.h"

namespace lockstep {
namespace {

// The number of transient faults after which a rank counts as permanently wrong.
constexpr int kManyFaults = 2;

// Returns the lines of /proc/cpuinfo that decide which instructions run and which results the instructions give, such
// as "flags: fpu vme ...".
std::string processor() {
  constexpr std::string_view kTelling[] = {"vendor_id",   "cpu family", "model",           "model name",
                                           "stepping",    "flags",      "CPU implementer", "CPU architecture",
                                           "CPU variant", "CPU part",   "Features"};
  std::ifstream file("/proc/cpuinfo");
  std::string text, line;
  while (std::getline(file, line) && !line.empty()) {  // an empty line ends the first core
    const std::string name = line.substr(0, line.find_first_of("\t:"));
    if (std::ranges::find(kTelling, name) != std::end(kTelling)) text += line + "\n";
  }
  return text;
}

std::string cores_of(int first, int last) {
  if (first < 0) return "a core that is not known";
  return first == last ? fmt::format("core {}", first) : fmt::format("cores {} to {}", first, last);
}

}  // namespace

std::uint64_t Auditor::Computed::digest() const {
  return hash64(digests.data(), digests.size() * sizeof(digests[0]), static_cast<std::uint64_t>(micro_batch));
}

// Reports has the Computed of all ranks.
struct Auditor::Reports {
  Reports(ProcessGroup& group, const Computed& own, const Computed& audited, std::size_t names) : names_(names) {
    std::vector<std::uint64_t> mine;
    for (const Computed* computed : {&own, &audited}) {
      mine.insert(mine.end(), computed->digests.begin(), computed->digests.end());
      mine.resize(mine.size() + names - computed->digests.size());  // a micro-batch without rows has no digests
      mine.push_back(static_cast<std::uint64_t>(computed->first_core));
      mine.push_back(static_cast<std::uint64_t>(computed->last_core));
    }
    all_ = gather_numbers(group, std::move(mine));
  }
  std::span<const std::uint64_t> digests(int rank, bool of_audited) const {
    return std::span(all_).subspan(at(rank, of_audited), names_);
  }
  std::string cores(int rank, bool of_audited) const {
    const std::size_t end = at(rank, of_audited) + names_;
    return cores_of(static_cast<int>(all_[end]), static_cast<int>(all_[end + 1]));
  }

 private:
  std::size_t at(int rank, bool of_audited) const {
    return (2 * static_cast<std::size_t>(rank) + (of_audited ? 1 : 0)) * (names_ + 2);
  }
  std::size_t names_;
  std::vector<std::uint64_t> all_;
};

Auditor::Auditor(std::shared_ptr<ProcessGroup> group, const Reproducible& reproducible, std::vector<std::string> names,
                 std::string libraries, std::int64_t first_step)
    : group_(std::move(group)),
      reproducible_(reproducible),
      names_(std::move(names)),
      libraries_(std::move(libraries)),
      last_clean_(static_cast<std::size_t>(group_->size()), first_step),
      faults_(static_cast<std::size_t>(group_->size()), 0) {}

Auditor::Turn Auditor::turn(std::int64_t audit, int ranks_per_host) const {
  Turn turn{.audit = audit};
  for (int rank = 0; rank < group_->size(); ++rank) {
    const int audited = data::audited_micro_batch(reproducible_.global_batch, reproducible_.micro_batches, rank,
                                                  group_->size(), ranks_per_host, audit);
    turn.audited.push_back(audited);
    int owner = 0;
    while (audited >= data::micro_batches_of(reproducible_.micro_batches, owner, group_->size()).end) ++owner;
    turn.owners.push_back(owner);
    if (owner == group_->rank()) turn.own = audited;
  }
  return turn;
}

void Auditor::find_kinds() {
  if (!kinds_.empty()) return;
  kinds_ = gather_numbers(*group_, {hash64(processor() + libraries_)});
  const std::set<std::uint64_t> different(kinds_.begin(), kinds_.end());
  if (different.size() == 1 || group_->rank() != 0) return;
  std::vector<std::string> texts;
  for (const std::uint64_t kind : different) {
    std::vector<int> ranks;
    for (int rank = 0; rank < group_->size(); ++rank) {
      if (kinds_[static_cast<std::size_t>(rank)] == kind) ranks.push_back(rank);
    }
    texts.push_back(rendezvous::describe_ranks(ranks));
  }
  log_warn(
      "DistributedDataParallel: the ranks have {} kinds of processors or libraries ({}), and ranks of different kinds "
      "are not compared in audits; put ranks of one kind next to each other in the host list",
      different.size(), fmt::join(texts, "; "));
}

std::vector<Auditor::Contradiction> Auditor::compare(const Turn& turn, std::span<const NamedBuffer> weights,
                                                     const Computed& own, const Computed& audited, std::int64_t step) {
  find_kinds();
  const std::vector<std::uint64_t> all =
      gather_numbers(*group_, {hash_replica(weights, group_->stream()), own.digest(), audited.digest()});
  for (std::size_t at = 3; at < all.size(); at += 3) {
    if (all[at] != all[0]) check_replicas(*group_, weights);
  }
  std::vector<Contradiction> contradictions;
  std::set<int> compared, contradicted;
  for (std::size_t auditor = 0; auditor < turn.owners.size(); ++auditor) {
    const auto owner = static_cast<std::size_t>(turn.owners[auditor]);
    if (kinds_[owner] != kinds_[auditor]) continue;
    const Contradiction pair{.owner = static_cast<int>(owner), .auditor = static_cast<int>(auditor)};
    const bool differ = all[3 * owner + 1] != all[3 * auditor + 2];
    (differ ? contradicted : compared).insert({pair.owner, pair.auditor});
    if (differ) contradictions.push_back(pair);
  }
  for (const int rank : compared) {
    if (!contradicted.contains(rank)) last_clean_[static_cast<std::size_t>(rank)] = step;
  }
  return contradictions;
}

std::string Auditor::describe_rank(int rank) const {
  return fmt::format("rank {} on {}", rank, group_->roster()[static_cast<std::size_t>(rank)].host);
}

std::string Auditor::describe(const Turn& turn, const Contradiction& it, const Reports& reports) const {
  const auto own = reports.digests(it.owner, false), audited = reports.digests(it.auditor, true);
  const auto name = static_cast<std::size_t>(std::ranges::mismatch(own, audited).in1 - own.begin());
  return fmt::format("{} ({}) and {} ({}) computed micro-batch {} with different results, first in '{}'",
                     describe_rank(it.owner), reports.cores(it.owner, false), describe_rank(it.auditor),
                     reports.cores(it.auditor, true), turn.audited[static_cast<std::size_t>(it.auditor)],
                     names_[std::min(name, names_.size() - 1)]);
}

void Auditor::blame(const std::set<int>& ranks, const std::string& text, std::int64_t step) {
  std::int64_t sound = step;
  for (const int rank : ranks) sound = std::min(sound, last_clean_[static_cast<std::size_t>(rank)]);
  if (before_blame_) before_blame_(sound);
  barrier_before_throw(*group_);
  const int rank = ranks.size() == 1 ? *ranks.begin() : -1;
  Cause cause = comm::cause_about(
      group_->roster(), Cause::Kind::mismatch, rank, group_->rank(),
      fmt::format("DistributedDataParallel: {}. Up to step {} all is sound: resume from a snapshot that is not newer",
                  text, sound));
  cause.step = step;
  cause.error_number = kHostComputesWrong;
  cause.ends_group = false;
  group_->internals().report_failure(cause);
  throw_error(cause);
}

bool Auditor::judge(const Turn& turn, std::span<const Contradiction> contradictions, const Computed& own,
                    const Computed& audited, const Computed& own_again, const Computed& audited_again,
                    std::int64_t step) {
  const Reports first(*group_, own, audited, names_.size());
  const std::vector<std::uint64_t> changed = gather_numbers(
      *group_, {own.digest() != own_again.digest() ? 1u : 0u, audited.digest() != audited_again.digest() ? 1u : 0u});
  bool is_step_wrong = false;
  std::vector<Contradiction> standing;
  std::set<int> at_fault;
  std::string texts = fmt::format("the audit of step {}: ", step);
  for (const Contradiction& it : contradictions) {
    texts += (&it == contradictions.data() ? "" : "; ") + describe(turn, it, first);
    const bool owner_changed = changed[2 * static_cast<std::size_t>(it.owner)] != 0;
    const bool auditor_changed = changed[2 * static_cast<std::size_t>(it.auditor) + 1] != 0;
    if (!owner_changed && !auditor_changed) standing.push_back(it);
    if (owner_changed) at_fault.insert(it.owner);
    if (auditor_changed) at_fault.insert(it.auditor);
    is_step_wrong = is_step_wrong || owner_changed;
  }
  if (at_fault.size() > 1) {
    comm::throw_disagreement(
        *group_,
        fmt::format("DistributedDataParallel: {}; {} got other results when they computed again: the program computes "
                    "something else each time, such as with random_device, the time, or what loss_of keeps between "
                    "calls; see docs/REPRODUCIBLE.md for what a program must do",
                    texts, rendezvous::describe_ranks(std::vector<int>(at_fault.begin(), at_fault.end()))),
        -1, step);
  }
  for (const int rank : at_fault) {
    if (++faults_[static_cast<std::size_t>(rank)] >= kManyFaults) {
      blame(
          {rank},
          fmt::format("{}; {} got another result when it computed again, as in an earlier audit: its processor is not "
                      "reliable; take its host out of the job",
                      texts, describe_rank(rank)),
          step);
    }
    if (group_->rank() == 0) {
      log_warn(
          "DistributedDataParallel: {}; {} got another result when it computed again: its processor had a transient "
          "fault{}. With its next fault the job ends; have the host tested",
          texts, describe_rank(rank), is_step_wrong && standing.empty() ? ", and the step is computed again" : "");
    }
  }
  if (standing.empty()) return is_step_wrong;
  // A rank is wrong if it is part of each contradiction and contradicts several other ranks.
  for (const int rank : {standing.front().owner, standing.front().auditor}) {
    std::set<int> others;
    for (const Contradiction& it : standing) {
      if (it.owner == rank) others.insert(it.auditor);
      if (it.auditor == rank) others.insert(it.owner);
    }
    const bool in_each =
        std::ranges::all_of(standing, [&](const Contradiction& it) { return it.owner == rank || it.auditor == rank; });
    if (others.size() < 2 || !in_each) continue;
    blame({rank},
          fmt::format("{}, and got the same when they computed again; {} contradicts {} ranks, which agree with all "
                      "others: its processor computes wrong values, unless the program computes something else on this "
                      "rank; take its host out of the job",
                      texts, describe_rank(rank), others.size()),
          step);
  }
  std::set<int> undecided;
  for (const Contradiction& it : standing) undecided.insert({it.owner, it.auditor});
  blame(undecided,
        fmt::format("{}, and got the same when they computed again: one of {} computes wrong values, and nobody knows "
                    "which, or the program computes something else on each rank; run the job on other hosts, or find "
                    "out with `lockstep replay` on each of these",
                    texts, rendezvous::describe_ranks(std::vector<int>(undecided.begin(), undecided.end()))),
        step);
}

}  // namespace lockstep
