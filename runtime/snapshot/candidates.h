// SPDX-License-Identifier: Apache-2.0
// The snapshots that ranks have on their disks, and the one from which the job resumes: the first that the ranks that
// have it can read to its end, together.
//
// Threads: one. All of it is collective. Failure: InvalidArgument on every rank alike; the group's errors.
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

// A snapshot that a rank has.
struct Candidate {
  int rank = 0;
  std::int64_t step = 0;
  std::int64_t generation = 0;
  std::uint64_t manifest = 0;  // a hash of it without its value; 0: it is not there, or not read
  std::optional<double> value = std::nullopt;
  std::string path = {};
  std::string newer_format = {};     // why only a later lockstep can read it; empty if the rank can
  std::set<std::string> files = {};  // names in the folder
  // The next three are known once it is chosen.
  std::optional<checkpoint::Manifest> contents = std::nullopt;
  std::map<std::string, int> readers = {};  // by file, a rank that has it undamaged
  std::filesystem::path own_path = {};      // the folder on this rank's disk, if there is one

  // Those that other ranks learn; the rank is known from whose record it is.
  static constexpr auto kFields = [](auto& candidate, auto& fields) {
    fields("step", candidate.step);
    fields("generation", candidate.generation);
    fields("manifest", candidate.manifest);
    fields("value", candidate.value);
    fields.lines("path", candidate.path);
    fields.lines("newer-format", candidate.newer_format);
    fields.list("files", candidate.files);
  };

  // Files of ranks that have not learned whether rank 0 wrote the manifest: only another rank's candidate makes it a
  // snapshot.
  bool is_unfinished() const { return manifest == 0 && newer_format.empty(); }

  bool is_newer_than(const Candidate& other) const {
    // Among equal ones the lowest rank's is newer; for one step by two generations, the later.
    return std::tuple(step, generation, other.manifest, other.rank) >
           std::tuple(other.step, other.generation, manifest, rank);
  }
};

class Candidates {
 public:
  // Looks at the folder on every rank's disk. `call` is for messages. Both outlive this object.
  Candidates(ProcessGroup& group, const std::filesystem::path& folder, std::string_view call);

  // In the order of choose(): newest first.
  const std::vector<Candidate>& all() const { return all_; }
  // Leaves only those that have a value, the best first.
  void order_by_value(bool higher_is_better);

  // Throws if one before it is a later lockstep's. `only`: the one file that is needed; empty: all. Once.
  std::optional<Candidate> choose(std::string_view only = {});
  // Throws, and tells the job's launcher that a host is awaited, if one before the `chosen` lacks a file that an absent
  // host has.
  void refuse_absent(const std::optional<Candidate>& chosen) const;
  // Throws if a rank has damaged ones.
  void refuse_damaged() const;

 private:
  // A file of a snapshot that lies on the disk of a host that is not among the group's.
  struct AbsentFile {
    Candidate lead;  // of a rank that has the manifest
    checkpoint::ManifestFile file;
  };

  // Finds for each file a rank that has it undamaged; `members` are of one snapshot. If a file has none, notes whether
  // it is damaged or on the disk of an absent host.
  std::optional<Candidate> find_readers(std::vector<Candidate> members, std::string_view only);
  // Gives each file of the manifest, or `only` that one, a rank that reads it. Returns the file that no rank has, or
  // null.
  const checkpoint::ManifestFile* assign_readers(Candidate& lead, const std::vector<Candidate>& members,
                                                 std::string_view only) const;
  void pass_over(const Candidate& candidate, std::string_view why_not);

  ProcessGroup& group_;
  const std::filesystem::path& folder_;
  const std::string call_;
  std::map<std::string, checkpoint::Manifest> own_manifests_;  // by path
  std::vector<Candidate> all_;
  std::vector<Candidate> damaged_;    // of those before the chosen one
  std::optional<AbsentFile> absent_;  // of the newest before it that lacks such a file
  std::string said_;                  // the last logged text: several ranks may have one snapshot
};

}  // namespace lockstep
