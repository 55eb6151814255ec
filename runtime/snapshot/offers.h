// SPDX-License-Identifier: Apache-2.0
// The snapshots that ranks have on their disks, and the contents of the chosen one. All of it is collective.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/checkpoint/snapshot/item_tensors.h"
#include "runtime/checkpoint/snapshot/manifest.h"
#include "runtime/snapshot/snapshots_impl.h"

namespace lockstep {

// A snapshot that a rank has.
struct BasicSnapshots::Impl::Offer {
  int rank = 0;
  std::int64_t step = 0;
  std::int64_t generation = 0;
  std::uint64_t manifest = 0;  // a hash of it without its value; 0: it is not there, or not read
  std::optional<double> value = std::nullopt;
  std::string path = {};
  std::string later = {};            // why only a later lockstep can read it; empty if the rank can
  std::set<std::string> files = {};  // names in the folder
  // The next three are known once the offer is chosen.
  std::optional<checkpoint::Manifest> contents = std::nullopt;
  std::map<std::string, int> readers = {};  // by file, a rank that has it undamaged
  std::filesystem::path own_path = {};      // the folder on this rank's disk, if there is one

  // Those that other ranks learn; the rank is known from whose record it is.
  static constexpr auto kFields = [](auto& offer, auto& fields) {
    fields("step", offer.step);
    fields("generation", offer.generation);
    fields("manifest", offer.manifest);
    fields("value", offer.value);
    fields.lines("path", offer.path);
    fields.lines("later", offer.later);
    fields.list("files", offer.files);
  };

  // Files of ranks that have not learned whether rank 0 wrote the manifest: only another rank's offer makes it a
  // snapshot.
  bool is_unfinished() const { return manifest == 0 && later.empty(); }

  bool is_newer_than(const Offer& other) const {
    // Among equal ones the lowest rank's is newer; for one step by two generations, the later.
    return std::tuple(step, generation, other.manifest, other.rank) >
           std::tuple(other.step, other.generation, manifest, rank);
  }
};

// A file of a snapshot that lies on the disk of a host that is not among the group's.
struct BasicSnapshots::Impl::AbsentFile {
  checkpoint::ManifestFile file;
  std::int64_t step = 0;
  std::filesystem::path snapshot = {};  // the folder of a rank that has the manifest
};

// The result of choose().
struct BasicSnapshots::Impl::Choice {
  std::optional<Offer> offer = std::nullopt;
  std::vector<Offer> damaged = {};                  // of those before it
  std::optional<AbsentFile> absent = std::nullopt;  // of the newest before it that lacks such a file
  std::string said = {};                            // the last logged text: several ranks may offer one snapshot
};

// The contents of a snapshot, as every rank knows them.
struct BasicSnapshots::Impl::Contents {
  using Tensors = std::map<std::string, checkpoint::SlicedTensor>;

  checkpoint::Manifest manifest;
  std::map<std::string, Tensors> tensors = {};                 // every item's
  std::shared_ptr<checkpoint::SnapshotFiles> files = nullptr;  // those that this rank reads
};

// Throws InvalidArgument on every rank, with the text of the lowest rank whose `own` is not empty; returns if there is
// none.
void agree(ProcessGroup& group, std::string_view what, const std::string& own);

// agree() on the Error that `action` throws.
template <typename Action>
void agree_on(ProcessGroup& group, std::string_view what, const Action& action) {
  std::string failure;
  try {
    action();
  } catch (const Error& error) {
    failure = error.what();
  }
  agree(group, what, failure);
}

}  // namespace lockstep
