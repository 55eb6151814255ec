// SPDX-License-Identifier: Apache-2.0
// The YAML of docs/deploy, as yaml-cpp reads it, but strictly.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::testing {

// The documents of a text: maps in the order of their keys' names, lists, and scalars, which are all strings. A key
// that comes twice, a value that is missing and a text without a document are refused, as is what is no YAML:
// lockstep::InvalidArgument with the line.
std::vector<nlohmann::json> parse_yaml(const std::string& text);

}  // namespace lockstep::testing
