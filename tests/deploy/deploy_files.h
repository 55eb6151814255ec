// What the tests of docs/deploy share.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "runtime/base/environment.h"
#include "runtime/base/error.h"
#include "tests/deploy/yaml.h"
#include "tests/support/process.h"

namespace lockstep::testing {

inline std::filesystem::path source_folder() { return LOCKSTEP_SOURCE_FOLDER; }

// Of a path from the root of the repository.
inline std::string read_source(const std::string& path) {
  std::ifstream file(source_folder() / path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) throw Error(path + " can't be read");
  return text.str();
}

// A YAML file of docs/deploy with one document.
inline nlohmann::json read_manifest(const std::string& path) {
  const auto documents = parse_yaml(read_source("docs/deploy/" + path));
  if (documents.size() != 1) throw Error(path + " has more than one document");
  return documents.front();
}

inline Environment to_environment(const Variables& variables) {
  return Environment({variables.begin(), variables.end()});
}

// A folder of this test's own, which goes with it.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(std::filesystem::temp_directory_path() / ("deploy-" + job())) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Writes a file below it.
  std::filesystem::path write(const std::string& name, const std::string& text, unsigned mode) const {
    const auto path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    std::filesystem::permissions(path, static_cast<std::filesystem::perms>(mode));
    return path;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::testing
