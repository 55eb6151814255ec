// SPDX-License-Identifier: Apache-2.0
// A folder of a test's own, which goes with it.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::testing {

class TemporaryFolder : public std::filesystem::path {
 public:
  TemporaryFolder() : path(made()) {}
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(*this, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  // Writes a file below it, with the folders between. Returns its path.
  std::filesystem::path write(const std::string& name, const std::string& text, unsigned mode = 0644) const {
    auto file = *this / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    std::filesystem::permissions(file, static_cast<std::filesystem::perms>(mode));
    return file;
  }

 private:
  static std::string made() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw SystemError("mkdtemp " + name, errno);
    return name;
  }
};

}  // namespace lockstep::testing
