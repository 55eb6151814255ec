// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/job/cause.h"
#include "runtime/base/hash.h"
#include "runtime/base/logging.h"
#include "runtime/checkpoint/snapshot/files.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/comm/gather_records.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/roster_cause.h"
#include "runtime/job/exit_code.h"
#include "runtime/snapshot/agree.h"

namespace lockstep {
namespace {

using checkpoint::FoundSnapshot, checkpoint::Generation, checkpoint::Manifest, checkpoint::ManifestFile,
    checkpoint::SnapshotState;

constexpr auto kGenerationFields = [](auto& generation, auto& fields) {
  fields("number", generation.number);
  fields("from-step", generation.from_step);
};

// A DamagedFile is a snapshot's file that a rank has found damaged.
struct DamagedFile {
  std::string name = {};
  std::string why_not = {};

  static constexpr auto kFields = [](auto& file, auto& fields) {
    fields.lines("name", file.name);
    fields.lines("why-not", file.why_not);
  };
};

// Returns a hash of the manifest without Manifest::value, because the value may be set after the snapshot was written.
std::uint64_t hash_of(Manifest manifest) {
  manifest.value.reset();
  return hash64(checkpoint::to_text(manifest));
}

// Returns the snapshots in `folder` from which the job may resume. The returned list includes snapshots that only a
// later version of lockstep can read, and snapshots of which this rank's disk has only some of the files. On rank 0,
// candidates_in() logs why it leaves out a snapshot.
std::vector<Candidate> candidates_in(const std::filesystem::path& folder, int rank,
                                     std::map<std::string, Manifest>& manifests) {
  std::vector<Candidate> own;
  for (FoundSnapshot& found : checkpoint::list_snapshots(folder)) {
    const bool is_later = found.state == SnapshotState::later;
    // If this disk's copy of the manifest is missing or damaged, another rank's copy may show that the undamaged files
    // on this disk belong to a snapshot.
    const bool is_damaged = found.state == SnapshotState::damaged;
    const bool is_unfinished = (is_damaged || found.state == SnapshotState::unfinished) &&
                               !checkpoint::numbers_of(found.path.filename().string())->survivor;
    if (!found.is_saved() && rank == 0) {
      log_warn("snapshots: '{}' {}: {}", found.path.string(), is_later ? "can't be read" : "is skipped", found.why_not);
    }
    if (!found.is_saved() && !is_later && !is_unfinished) continue;
    const std::vector<std::string> files = checkpoint::names_in(found.path);
    Candidate& candidate = own.emplace_back(Candidate{.step = found.step,
                                                      .generation = found.generation,
                                                      .path = std::filesystem::absolute(found.path).string(),
                                                      .files = {files.begin(), files.end()}});
    if (is_later) candidate.newer_format = found.why_not;
    if (is_damaged || !found.manifest) continue;
    candidate.manifest = hash_of(*found.manifest);
    candidate.value = found.manifest->value;
    manifests.emplace(candidate.path, *std::move(found.manifest));
  }
  return own;
}

// Returns the first later start of the job (generation) that did not resume from a snapshot, or resumed from a step
// before the candidate's step. Returns null if every later start resumed from the candidate's step or a later step.
const Generation* superseded_by(const Candidate& candidate, const std::vector<Generation>& generations) {
  const auto found = std::ranges::find_if(generations, [&](const Generation& it) {
    return it.number > candidate.generation && it.from_step.value_or(-1) < candidate.step;
  });
  return found == generations.end() ? nullptr : &*found;
}

}  // namespace

Candidates::Candidates(ProcessGroup& group, const std::filesystem::path& folder, std::string_view call)
    : group_(group), folder_(folder), call_(call) {
  std::vector<Candidate> own;
  std::vector<Generation> known;
  agree_on(group, call, [&] {
    own = candidates_in(folder, group.rank(), own_manifests_);
    known = checkpoint::list_generations(folder);
    std::erase_if(known, [](const Generation& it) { return !it.why_not.empty(); });
  });
  // Gather the records of the job's starts from the disks of all ranks, because a disk that was absent when the job
  // started has no record of that start.
  std::vector<Generation> generations;
  for (const auto& of_rank : all_gather_records(group, known, kGenerationFields, "snapshots: the starts")) {
    generations.insert(generations.end(), of_rank.begin(), of_rank.end());
  }
  for (int rank = 0;
       std::vector<Candidate> & of_rank : all_gather_records(group, own, Candidate::kFields, "snapshots: the offer")) {
    for (Candidate& candidate : of_rank) {
      candidate.rank = rank;
      const Generation* const later = superseded_by(candidate, generations);
      if (later == nullptr) {
        all_.push_back(std::move(candidate));
      } else if (group.rank() == 0) {
        log_warn(
            "snapshots: '{}' of {} is skipped: a later start of this job, generation {}, did not resume from this "
            "snapshot",
            candidate.path, group.roster()[static_cast<std::size_t>(rank)].describe(), later->number);
      }
    }
    ++rank;
  }
  std::ranges::sort(all_, [](const Candidate& a, const Candidate& b) { return a.is_newer_than(b); });
}

void Candidates::order_by_value(bool higher_is_better) {
  std::erase_if(all_,
                [](const Candidate& it) { return !it.value || std::isnan(*it.value) || !it.newer_format.empty(); });
  // Among candidates of equal value, the earlier step comes first. The sort is stable, so among candidates of one step
  // the lowest rank comes first.
  std::ranges::stable_sort(all_, [&](const Candidate& a, const Candidate& b) {
    const double left = higher_is_better ? -*a.value : *a.value;
    const double right = higher_is_better ? -*b.value : *b.value;
    return left < right || (left == right && a.step < b.step);
  });
}

std::optional<Candidate> Candidates::choose(std::string_view only) {
  std::optional<Candidate> chosen;
  for (auto it = all_.begin(); it != all_.end() && !chosen; ++it) {
    const auto is_same = [&](const Candidate& other) {
      return std::tuple(other.step, other.generation, other.manifest, other.newer_format.empty()) ==
             std::tuple(it->step, it->generation, it->manifest, it->newer_format.empty());
    };
    if (it->is_unfinished() || std::any_of(all_.begin(), it, is_same)) continue;
    std::vector<Candidate> members;
    std::ranges::copy_if(all_, std::back_inserter(members), is_same);
    std::ranges::copy_if(all_, std::back_inserter(members), [&](const Candidate& other) {
      return other.is_unfinished() && std::pair(other.step, other.generation) == std::pair(it->step, it->generation) &&
             std::ranges::count(members, other.rank, &Candidate::rank) == 0;
    });
    chosen = find_readers(std::move(members), only);
  }
  std::erase_if(damaged_, [](const Candidate& it) { return it.is_unfinished(); });
  return chosen;
}

std::optional<Candidate> Candidates::find_readers(std::vector<Candidate> members, std::string_view only) {
  const std::vector<Candidate> all = members;
  std::set<std::string> verified, lost;
  // Each round of the loop verifies copies of the snapshot's files that no rank has found damaged in earlier rounds. If
  // a rank finds its copy of a file damaged, the next round verifies another rank's copy of the file.
  while (!members.empty() && !members.front().is_unfinished()) {
    Candidate lead = members.front();
    if (!lead.newer_format.empty()) {
      // Don't resume from an older snapshot instead, because the run would repeat steps, and no later run could resume
      // from this newer snapshot.
      barrier_before_throw(group_);
      throw InvalidArgument(fmt::format(
          "{}: on {}: the snapshot '{}' can't be read: {}; if you can't update lockstep, move that snapshot away to "
          "resume from an older one",
          call_, group_.roster()[static_cast<std::size_t>(lead.rank)].describe(), lead.path, lead.newer_format));
    }
    // The lowest rank whose disk has the manifest sends the manifest to all ranks.
    const std::string text =
        lead.rank == group_.rank() ? checkpoint::to_text(own_manifests_.at(lead.path)) : std::string();
    const Manifest& manifest = lead.contents.emplace(
        checkpoint::manifest_from_text(broadcast_value(std::string_view(text), group_, lead.rank)));
    if (const ManifestFile* const file = assign_readers(lead, members, only)) {
      pass_over(lead, fmt::format("no rank has an undamaged {}, which rank {} wrote", file->name, file->owner));
      const bool is_host_here =
          !file->host.empty() && std::ranges::count(group_.roster(), file->host, &rendezvous::Member::host) > 0;
      if (lost.contains(file->name) || is_host_here) break;
      if (!absent_) absent_ = AbsentFile{.lead = lead, .file = *file};
      return std::nullopt;
    }
    std::vector<DamagedFile> damaged;
    agree_on(group_, call_, [&] {
      const auto own = std::ranges::find(members, group_.rank(), &Candidate::rank);
      if (own == members.end()) return;
      lead.own_path = own->path;
      const FoundSnapshot here{.path = own->path, .manifest = manifest};
      for (const ManifestFile& file : manifest.files) {
        const auto reader = lead.readers.find(file.name);
        if (reader == lead.readers.end() || reader->second != group_.rank() || verified.contains(file.name)) continue;
        try {
          checkpoint::verify_file(here, file);
          verified.insert(file.name);
        } catch (const CorruptData& error) {
          damaged.push_back({file.name, error.what()});
        }
      }
    });
    bool is_whole = true;
    const auto of_ranks = all_gather_records(group_, damaged, DamagedFile::kFields, "snapshots: the damaged files");
    for (Candidate& member : members) {
      for (const DamagedFile& file : of_ranks[static_cast<std::size_t>(member.rank)]) {
        pass_over(member, file.why_not);
        member.files.erase(file.name);
        lost.insert(file.name);
        is_whole = false;
      }
    }
    if (is_whole) return lead;
  }
  damaged_.insert(damaged_.end(), all.begin(), all.end());
  return std::nullopt;
}

const ManifestFile* Candidates::assign_readers(Candidate& lead, const std::vector<Candidate>& members,
                                               std::string_view only) const {
  for (const ManifestFile& file : lead.contents->files) {
    if (!only.empty() && file.name != only) continue;
    // If the rank that wrote a file still has the file, that rank also reads the file, so that the ranks read different
    // files at the same time.
    const Candidate* reader = nullptr;
    for (const Candidate& member : members) {
      if (!member.files.contains(file.name)) continue;
      if (reader == nullptr || member.rank == file.owner) reader = &member;
    }
    if (reader == nullptr) return &file;
    lead.readers[file.name] = reader->rank;
  }
  return nullptr;
}

void Candidates::pass_over(const Candidate& candidate, std::string_view why_not) {
  const std::string text = fmt::format("snapshots: '{}' is skipped: {}", candidate.path, why_not);
  if (group_.rank() == 0 && text != std::exchange(said_, text)) log_warn("{}", text);
}

void Candidates::refuse_absent(const std::optional<Candidate>& chosen) const {
  if (!absent_) return;
  const auto& [lead, file] = *absent_;
  const std::string host = file.host.empty() ? "the host" : "host " + file.host;
  const std::string without =
      chosen ? fmt::format(
                   "Without it the job would resume from step {} ('{}') and do {} steps again: only if "
                   "that host is gone for good, remove '{}' on each host",
                   chosen->step, chosen->path, lead.step - chosen->step,
                   std::filesystem::path(lead.path).filename().string())
             : "No older snapshot is whole without it";
  const std::string text = fmt::format(
      "snapshots: nothing is damaged, but step {} is not whole on the hosts of this job: {} is on the disk of {}, "
      "where rank {} wrote it. Bring that host back, or copy its file to '{}'. {}",
      lead.step, file.name, host, file.owner, lead.path, without);
  barrier_before_throw(group_);
  Cause cause = comm::cause_about(group_.roster(), Cause::Kind::mismatch, -1, group_.rank(), text);
  cause.error_number = kHostAbsent;
  cause.step = lead.step;
  cause.ends_group = false;
  group_.internals().report_failure(cause);
  throw InvalidArgument(text);
}

void Candidates::refuse_damaged() const {
  agree_on(group_, call_, [&] {
    auto count = std::ranges::count(damaged_, group_.rank(), &Candidate::rank);
    count += std::ranges::count(checkpoint::list_snapshots(folder_), SnapshotState::damaged, &FoundSnapshot::state);
    if (count == 0) return;
    throw InvalidArgument(
        fmt::format("'{}' has {} damaged snapshot{} and none that is whole; run `lockstep snapshots --verify {}` to "
                    "see the damage, and repair a snapshot, or give another folder to begin anew",
                    folder_.string(), count, count == 1 ? "" : "s", folder_.string()));
  });
}

}  // namespace lockstep
