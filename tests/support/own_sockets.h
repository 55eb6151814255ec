// SPDX-License-Identifier: Apache-2.0
// The TCP sockets (IPv4) of this process.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep::testing {

struct OwnSocket {
  std::string local;  // "0100007F:1234", as /proc/net/tcp has it
  std::string state;

  bool listens() const { return state == "0A"; }
  bool is_connected() const { return state == "01"; }
};

inline std::vector<OwnSocket> own_sockets() {
  std::set<std::string> own;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* const entry = ::readdir(folder)) {
    std::array<char, PATH_MAX> target{};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (::readlink(path.c_str(), target.data(), target.size() - 1) > 0) own.insert(target.data());
  }
  ::closedir(folder);
  std::vector<OwnSocket> sockets;
  std::ifstream table("/proc/self/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retries, user, timeout, inode;
    words >> slot >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >> inode;
    if (own.contains("socket:[" + inode + "]")) sockets.push_back({local, state});
  }
  return sockets;
}

}  // namespace lockstep::testing
