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
  bool is_verified = false;                              // every byte was read, else names and sizes
  std::vector<checkpoint::FoundSnapshot> snapshots;      // newest first
  std::vector<checkpoint::Generation> generations = {};  // the starts of the job
};

// Lists a job's folder, or one snapshot. InvalidArgument if there is no such folder, SystemError.
Listing list_folder(const std::filesystem::path& folder, bool verify);
// One is damaged, or a later lockstep has written it.
bool has_unreadable(const Listing& listing);
std::string as_text(const Listing& listing);
std::string as_json(const Listing& listing);

}  // namespace lockstep::launcher::snapshots
