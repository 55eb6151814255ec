// SPDX-License-Identifier: Apache-2.0
// JSON with a checksum of itself: what was cut, or in which a bit has flipped, is refused. Pure functions over text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

// What a text says first that it is.
struct SealedFormat {
  const char* name = "";
  std::uint64_t version = 1;
  int most_depth = 1;
};

// Compact, or indented. InvalidArgument if a text in it is not UTF-8.
std::string dump_json(const nlohmann::json& json, int indent = -1);

// "0123456789abcdef", as texts have checksums.
std::string hex(std::uint64_t hash);

// One text for each object: keys in order, indented by 1, a newline at the end; "format", "version" and "xxh3", which
// is XXH3-64 of the compact text without it, are added. InvalidArgument if a text in it is not UTF-8.
std::string seal(nlohmann::json json, const SealedFormat& format);
// The object without those three. CorruptData with the reason: no JSON, another format or version, another checksum
// than it says, or not exactly the text that seal() makes.
nlohmann::json unseal(std::string_view text, const SealedFormat& format, std::string_view what);

}  // namespace lockstep::checkpoint
