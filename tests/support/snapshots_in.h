// SPDX-License-Identifier: Apache-2.0
// What a job has saved.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::testing {

// The names of the snapshots in a folder, in order of their steps.
inline std::vector<std::string> snapshots_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace lockstep::testing
