// SPDX-License-Identifier: Apache-2.0
#include "tests/deploy/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "lockstep/base/error.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const YAML::Mark& mark, const std::string& what) {
  throw InvalidArgument(fmt::format("yaml, line {}: {}", mark.line + 1, what));
}

json to_json(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  if (node.IsSequence()) {
    json list = json::array();
    for (const YAML::Node& item : node) list.push_back(to_json(item));
    return list;
  }
  if (!node.IsMap()) refuse(node.Mark(), "a value is missing");
  json map = json::object();
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) refuse(entry.first.Mark(), "a key that is not text");
    const std::string& key = entry.first.Scalar();
    if (map.contains(key)) refuse(entry.first.Mark(), fmt::format("'{}' comes twice", key));
    map[key] = to_json(entry.second);
  }
  return map;
}

}  // namespace

std::vector<json> parse_yaml(const std::string& text) {
  std::vector<json> documents;
  try {
    for (const YAML::Node& document : YAML::LoadAll(text)) documents.push_back(to_json(document));
  } catch (const YAML::Exception& error) {
    refuse(error.mark, error.msg);
  }
  if (documents.empty()) throw InvalidArgument("yaml: nothing to read");
  return documents;
}

}  // namespace lockstep::testing
