// The YAML of docs/deploy, read strictly.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::testing {

// The documents of a text: maps in the order of their keys' names, lists, and scalars, which are all strings.
//
// A subset, of which both sides are sure: block maps and lists, [flow, lists] and {flow: maps} on one line, scalars
// that are plain, 'single' or "double" quoted. What is beyond (anchors, tags, block scalars, text over several lines),
// a tab, a key that comes twice and an indentation that fits nothing are refused: lockstep::InvalidArgument with the
// line.
std::vector<nlohmann::json> parse_yaml(const std::string& text);

}  // namespace lockstep::testing
