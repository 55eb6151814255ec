// SPDX-License-Identifier: Apache-2.0
// The content of a folder of snapshots.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/series.h"

namespace lockstep::launcher::snapshots {

struct Listing {
  std::filesystem::path folder;
  bool is_verified = false;                              // every byte was read; else only names and sizes
  std::vector<checkpoint::FoundSnapshot> snapshots;      // newest first
  std::vector<checkpoint::Generation> generations = {};  // starts of the job
};

// Lists a job's folder, or one snapshot. Throws InvalidArgument if the folder does not exist, SystemError.
Listing list_folder(const std::filesystem::path& folder, bool verify);
// Returns true if a snapshot is damaged, or was written by a later lockstep.
bool has_unreadable(const Listing& listing);
std::string as_text(const Listing& listing);
std::string as_json(const Listing& listing);

}  // namespace lockstep::launcher::snapshots
