// SPDX-License-Identifier: Apache-2.0
// What the tests of docs/deploy share.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "tests/deploy/yaml.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

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

}  // namespace lockstep::testing
