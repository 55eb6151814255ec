// SPDX-License-Identifier: Apache-2.0
// Writes a snapshot's tensors for other programs: whole, whichever ranks had saved them.
#pragma once

#include <filesystem>
#include <vector>

namespace lockstep::launcher::snapshots {

// Reads every byte of the snapshot, and writes ITEM.safetensors to `folder` for each item that has tensors, with the
// item's type and values (JSON) as metadata; makes the folder. Returns the files. One item at a time is in memory.
// InvalidArgument if the snapshot can't be opened or `folder` is there and not empty, CorruptData, SystemError.
std::vector<std::filesystem::path> export_items(const std::filesystem::path& snapshot,
                                                const std::filesystem::path& folder);

}  // namespace lockstep::launcher::snapshots
