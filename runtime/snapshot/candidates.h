// SPDX-License-Identifier: Apache-2.0
// Candidates lists the snapshots on the disks of all ranks, and chooses the snapshot from which the job resumes. The
// job resumes from the first listed snapshot whose files the ranks can together read completely.
//
// Threads: only one thread may call the functions of Candidates, and all calls are collective.
// Failure: the functions of Candidates throw InvalidArgument on every rank, and pass on the group's errors.
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

// A Candidate is a snapshot on one rank's disk from which the job may resume.
struct Candidate {
  int rank = 0;
  std::int64_t step = 0;
  std::int64_t generation = 0;
  // The hash of the manifest without Manifest::value, or 0 if the manifest is missing or was not read.
  std::uint64_t manifest = 0;
  std::optional<double> value = std::nullopt;
  std::string path = {};
  // The reason why only a later version of lockstep can read the snapshot, or an empty text if this version can read
  // the snapshot.
  std::string newer_format = {};
  std::set<std::string> files = {};  // the names of the files in the folder
  // choose() sets the next three fields.
  std::optional<checkpoint::Manifest> contents = std::nullopt;
  std::map<std::string, int> readers = {};  // a rank that has the file undamaged, by file
  std::filesystem::path own_path = {};      // the snapshot's folder on this rank's disk, or empty

  // The fields of a Candidate that a rank sends to the other ranks. A rank that receives a Candidate sets `rank` to the
  // sender's rank.
  static constexpr auto kFields = [](auto& candidate, auto& fields) {
    fields("step", candidate.step);
    fields("generation", candidate.generation);
    fields("manifest", candidate.manifest);
    fields("value", candidate.value);
    fields.lines("path", candidate.path);
    fields.lines("newer-format", candidate.newer_format);
    fields.list("files", candidate.files);
  };

  // Returns whether the candidate's manifest is missing or damaged. The manifest may be missing because the rank
  // stopped before it got a copy of the manifest that rank 0 wrote. The files of a candidate without a manifest belong
  // to a snapshot only if another rank has the manifest.
  bool is_unfinished() const { return manifest == 0 && newer_format.empty(); }

  bool is_newer_than(const Candidate& other) const {
    // Among candidates of one step, the candidate of the later generation is newer. Among candidates of the same
    // snapshot, the lowest rank's candidate counts as the newest.
    return std::tuple(step, generation, other.manifest, other.rank) >
           std::tuple(other.step, other.generation, manifest, rank);
  }
};

class Candidates {
 public:
  // Lists the snapshots in `folder` on every rank's disk. `call` is the caller's name in messages. `group` and `folder`
  // must outlive this object.
  Candidates(ProcessGroup& group, const std::filesystem::path& folder, std::string_view call);

  // Returns all candidates in the order in which choose() tries them, the newest first.
  const std::vector<Candidate>& all() const { return all_; }
  // Removes the candidates whose Candidate::value is missing or NaN, and sorts the remaining candidates by value, the
  // best first.
  void order_by_value(bool higher_is_better);

  // Returns the first candidate whose files the ranks can read, or nullopt if the ranks can read no candidate. Throws
  // InvalidArgument if choose() meets a candidate of a later version of lockstep before it finds a candidate that the
  // ranks can read. If `only` is empty, the ranks must be able to read all files of the candidate; otherwise only the
  // file named `only`. Call choose() once.
  std::optional<Candidate> choose(std::string_view only = {});
  // Throws InvalidArgument if a snapshot that choose() tried before `chosen` lacks a file that is on the disk of a host
  // outside the group. Before the exception, refuse_absent() tells the launcher that the job waits for the absent host.
  void refuse_absent(const std::optional<Candidate>& chosen) const;
  // Throws InvalidArgument on every rank if the disk of some rank has a damaged snapshot.
  void refuse_damaged() const;

 private:
  // An AbsentFile is a snapshot's file that is on the disk of a host outside the group.
  struct AbsentFile {
    Candidate lead;  // the candidate of a rank that has the manifest
    checkpoint::ManifestFile file;
  };

  // Finds, for each file of a snapshot, a rank whose disk has the file undamaged. `members` are the candidates of the
  // snapshot on all ranks. If no rank has an undamaged copy of some file, find_readers() adds the candidates to
  // damaged_ or sets absent_, and returns nullopt.
  std::optional<Candidate> find_readers(std::vector<Candidate> members, std::string_view only);
  // For each file of the manifest, or for only the file `only`, stores in `lead.readers` the rank that reads the file.
  // Returns a file that is on no rank's disk, or null if each file is on the disk of some rank.
  const checkpoint::ManifestFile* assign_readers(Candidate& lead, const std::vector<Candidate>& members,
                                                 std::string_view only) const;
  void pass_over(const Candidate& candidate, std::string_view why_not);

  ProcessGroup& group_;
  const std::filesystem::path& folder_;
  const std::string call_;
  std::map<std::string, checkpoint::Manifest> own_manifests_;  // this rank's manifests, by path
  std::vector<Candidate> all_;
  std::vector<Candidate> damaged_;  // the damaged candidates before the chosen candidate
  // The first file that choose() could not read because the file is on an absent host's disk, or nullopt.
  std::optional<AbsentFile> absent_;
  std::string said_;  // the last logged text, which is not logged again for another rank
};

}  // namespace lockstep
