// SPDX-License-Identifier: Apache-2.0
// What the epolls of this process watch though it has closed it: another process has the same open file.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace lockstep::testing {

// How many watches are of a descriptor that is closed here, or another file's by now.
inline int stale_watches() {
  int stale = 0;
  DIR* const folder = ::opendir("/proc/self/fdinfo");
  while (const dirent* const entry = ::readdir(folder)) {
    std::ifstream info(std::string("/proc/self/fdinfo/") + entry->d_name);
    for (std::string line; std::getline(info, line);) {
      int watched = -1;  // "tfd:        4 events:       19 data:                4  pos:0 ino:193ce sdev:9"
      if (std::istringstream words(line.starts_with("tfd:") ? line.substr(4) : ""); !(words >> watched)) continue;
      struct stat status {};
      const bool is_open = ::fstat(watched, &status) == 0;
      if (!is_open || status.st_ino != std::stoull(line.substr(line.find("ino:") + 4), nullptr, 16)) ++stale;
    }
  }
  ::closedir(folder);
  return stale;
}

}  // namespace lockstep::testing
