// SPDX-License-Identifier: Apache-2.0
// Candidates has the snapshots on the ranks' disks. The job resumes from the first snapshot that the ranks which have
// its files can together read completely.
//
// Threads: only one thread calls this class, and all calls are collective.
// Failure: throws InvalidArgument on every rank, and the group's errors.
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

// Candidate is a snapshot on a rank's disk.
struct Candidate {
  int rank = 0;
  std::int64_t step = 0;
  std::int64_t generation = 0;
  // The hash of the manifest without its value; 0 if the manifest is missing or was not read.
  std::uint64_t manifest = 0;
  std::optional<double> value = std::nullopt;
  std::string path = {};
  // The reason why only a later lockstep can read the snapshot; empty if this lockstep can read the snapshot.
  std::string newer_format = {};
  std::set<std::string> files = {};  // the names of the files in the folder
  // choose() sets the next three fields.
  std::optional<checkpoint::Manifest> contents = std::nullopt;
  std::map<std::string, int> readers = {};  // a rank that has the file undamaged, by file
  std::filesystem::path own_path = {};      // the snapshot's folder on this rank's disk, or empty

  // The fields that a rank sends to other ranks, which know `rank` as the sender.
  static constexpr auto kFields = [](auto& candidate, auto& fields) {
    fields("step", candidate.step);
    fields("generation", candidate.generation);
    fields("manifest", candidate.manifest);
    fields("value", candidate.value);
    fields.lines("path", candidate.path);
    fields.lines("newer-format", candidate.newer_format);
    fields.list("files", candidate.files);
  };

  // Returns whether the candidate has no readable manifest: its rank may not have learned whether rank 0 wrote the
  // manifest. Only another rank's candidate makes the files of an unfinished candidate a snapshot.
  bool is_unfinished() const { return manifest == 0 && newer_format.empty(); }

  bool is_newer_than(const Candidate& other) const {
    // Among generations of one step, the later generation is newer. Among equal snapshots, the lowest rank's snapshot
    // is newer.
    return std::tuple(step, generation, other.manifest, other.rank) >
           std::tuple(other.step, other.generation, manifest, rank);
  }
};

class Candidates {
 public:
  // Lists the snapshots in the folder on every rank's disk. `call` is the caller's name in messages. `group` and
  // `folder` must outlive this object.
  Candidates(ProcessGroup& group, const std::filesystem::path& folder, std::string_view call);

  // Returns all candidates in the order in which choose() tries them, the newest first.
  const std::vector<Candidate>& all() const { return all_; }
  // Keeps only candidates that have a value, and sorts the candidates, the best first.
  void order_by_value(bool higher_is_better);

  // Returns the first snapshot that the ranks can read. Throws InvalidArgument if a later lockstep wrote a candidate
  // that comes before this snapshot. `only` is the single file that is needed; if `only` is empty, all files are
  // needed. Call choose() once.
  std::optional<Candidate> choose(std::string_view only = {});
  // Throws InvalidArgument if a snapshot before `chosen` lacks a file that an absent host has, and tells the job's
  // launcher that the host is awaited.
  void refuse_absent(const std::optional<Candidate>& chosen) const;
  // Throws InvalidArgument if a rank has damaged snapshots.
  void refuse_damaged() const;

 private:
  // AbsentFile is a file of a snapshot on the disk of a host that is not in the group.
  struct AbsentFile {
    Candidate lead;  // the candidate of a rank that has the manifest
    checkpoint::ManifestFile file;
  };

  // Finds for each file a rank that has the file undamaged. `members` are candidates of one snapshot. If no rank has a
  // file, returns nullopt and notes whether the file is damaged or on the disk of an absent host.
  std::optional<Candidate> find_readers(std::vector<Candidate> members, std::string_view only);
  // Gives each file of the manifest, or only the file `only`, a rank that reads the file. Returns a file that no rank
  // has, or null if each file has a rank.
  const checkpoint::ManifestFile* assign_readers(Candidate& lead, const std::vector<Candidate>& members,
                                                 std::string_view only) const;
  void pass_over(const Candidate& candidate, std::string_view why_not);

  ProcessGroup& group_;
  const std::filesystem::path& folder_;
  const std::string call_;
  std::map<std::string, checkpoint::Manifest> own_manifests_;  // this rank's manifests, by path
  std::vector<Candidate> all_;
  std::vector<Candidate> damaged_;  // the damaged candidates before the chosen candidate
  // The missing file of the newest snapshot, before the chosen snapshot, that lacks an absent host's file.
  std::optional<AbsentFile> absent_;
  std::string said_;  // the last logged text, which is not logged again for another rank
};

}  // namespace lockstep
