// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/strict_json.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "runtime/base/printable.h"

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::json;

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view what, int most_depth) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      if (depth >= most_depth) throw CorruptData(fmt::format("{} is nested too deeply", what));
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end || event == Json::parse_event_t::array_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw CorruptData(fmt::format("{} is there twice", in_quotes(value.get<std::string>())));
    }
    return true;
  };
  // The parser takes it for the end of the text.
  if (text.find('\0') != text.npos) throw CorruptData(fmt::format("{} is no JSON: there is a NUL byte in it", what));
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    throw CorruptData(fmt::format("{} is no JSON: {}", what, printable(error.what(), kMostShown)));
  }
}

}  // namespace lockstep::checkpoint
