// SPDX-License-Identifier: Apache-2.0
// The snapshots on the ranks' disks, and the one from which the job resumes: the first that the ranks which have it can
// read completely, together.
//
// Threads: one. Collective: all calls.
// Failure: InvalidArgument on every rank alike; the group's errors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "runtime/checkpoint/snapshot/manifest.h"

namespace lockstep {

// A snapshot on a rank's disk.
struct Candidate {
  int rank = 0;
  std::int64_t step = 0;
  std::int64_t generation = 0;
  // A hash of the manifest without its value; 0: the manifest is missing or was not read.
  std::uint64_t manifest = 0;
  std::optional<double> value = std::nullopt;
  std::string path = {};
  // The reason why only a later lockstep can read it; empty if this one can.
  std::string newer_format = {};
  std::set<std::string> files = {};  // names in the folder
  // choose() sets the next three.
  std::optional<checkpoint::Manifest> contents = std::nullopt;
  std::map<std::string, int> readers = {};  // by file, a rank that has it undamaged
  std::filesystem::path own_path = {};      // the folder on this rank's disk, if there is one

  // The fields that other ranks learn; the record's sender is the rank.
  static constexpr auto kFields = [](auto& candidate, auto& fields) {
    fields("step", candidate.step);
    fields("generation", candidate.generation);
    fields("manifest", candidate.manifest);
    fields("value", candidate.value);
    fields.lines("path", candidate.path);
    fields.lines("newer-format", candidate.newer_format);
    fields.list("files", candidate.files);
  };

  // Whether these are files of ranks that did not learn whether rank 0 wrote the manifest: only another rank's
  // candidate makes them a snapshot.
  bool is_unfinished() const { return manifest == 0 && newer_format.empty(); }

  bool is_newer_than(const Candidate& other) const {
    // Among equal snapshots the lowest rank's is newer; among generations of one step, the later.
    return std::tuple(step, generation, other.manifest, other.rank) >
           std::tuple(other.step, other.generation, manifest, rank);
  }
};

class Candidates {
 public:
  // Looks at the folder on every rank's disk. `call` is the caller's name in messages. `group` and `folder` outlive
  // this object.
  Candidates(ProcessGroup& group, const std::filesystem::path& folder, std::string_view call);

  // All candidates in the order of choose(): newest first.
  const std::vector<Candidate>& all() const { return all_; }
  // Keeps only candidates that have a value, the best first.
  void order_by_value(bool higher_is_better);

  // Returns the newest snapshot that can be read. Throws if a later lockstep wrote one that is newer. `only` is the one
  // file that is needed; empty: all. Called once.
  std::optional<Candidate> choose(std::string_view only = {});
  // Throws, and tells the job's launcher that a host is awaited, if a snapshot before `chosen` lacks a file that an
  // absent host has.
  void refuse_absent(const std::optional<Candidate>& chosen) const;
  // Throws if a rank has damaged snapshots.
  void refuse_damaged() const;

 private:
  // A file of a snapshot on the disk of a host that is not in the group.
  struct AbsentFile {
    Candidate lead;  // the candidate of a rank that has the manifest
    checkpoint::ManifestFile file;
  };

  // Finds for each file a rank that has it undamaged; `members` are candidates of one snapshot. If no rank has a file,
  // notes whether the file is damaged or on the disk of an absent host.
  std::optional<Candidate> find_readers(std::vector<Candidate> members, std::string_view only);
  // Gives each file of the manifest, or only the file `only`, a rank that reads it. Returns the file that no rank has,
  // or null.
  const checkpoint::ManifestFile* assign_readers(Candidate& lead, const std::vector<Candidate>& members,
                                                 std::string_view only) const;
  void pass_over(const Candidate& candidate, std::string_view why_not);

  ProcessGroup& group_;
  const std::filesystem::path& folder_;
  const std::string call_;
  std::map<std::string, checkpoint::Manifest> own_manifests_;  // this rank's manifests, by path
  std::vector<Candidate> all_;
  std::vector<Candidate> damaged_;  // damaged candidates before the chosen one
  // The missing file of the newest snapshot before the chosen one that lacks an absent host's file.
  std::optional<AbsentFile> absent_;
  std::string said_;  // the last logged text, because several ranks may have one snapshot
};

}  // namespace lockstep
