// SPDX-License-Identifier: Apache-2.0
// run7/lock, held by rank 0 for as long as the job runs: two jobs in one folder would take each other's snapshots away.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/base/unique_fd.h"

namespace lockstep::checkpoint {

class SeriesLock {
 public:
  // Makes the folder. InvalidArgument with the holder's name and since when, if another process has it. A file system
  // without locks is said in the log: then generations alone keep jobs apart. SystemError.
  SeriesLock(const std::filesystem::path& folder, const std::string& who);

 private:
  UniqueFd fd_;
};

}  // namespace lockstep::checkpoint
