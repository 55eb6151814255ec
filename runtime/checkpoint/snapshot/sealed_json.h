// SPDX-License-Identifier: Apache-2.0
// JSON with a checksum of itself: a text that was cut, or in which a bit has flipped, is refused. Pure functions over
// text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::checkpoint {

// The kind and version that a text begins with. Every version has these two, and the checksum of version 1: an older
// lockstep then knows a later text from a damaged one.
struct SealedFormat {
  const char* name = "";
  std::uint64_t version = 1;
};

// A later lockstep has written it, and nothing of it is lost.
class LaterFormat : public Error {
 public:
  // "WHAT was written by a later lockstep (HOW): update lockstep".
  LaterFormat(std::string_view what, std::string_view how);
};

// Compact, or indented. InvalidArgument if a text in the object is not UTF-8.
std::string dump_json(const nlohmann::json& json, int indent = -1);

// "0123456789abcdef", as texts have checksums.
std::string hex(std::uint64_t hash);

// One text for each object: keys in order, indented by 1, a newline at the end; "format", "version" and "xxh3", which
// is XXH3-64 of the compact text without it, are added. InvalidArgument if a text in it is not UTF-8.
std::string seal(nlohmann::json json, const SealedFormat& format);
// The object without those three. CorruptData with the reason: no JSON, another format, another checksum than it says,
// or not exactly the text that seal() makes. LaterFormat for such a text of a later version.
nlohmann::json unseal(std::string_view text, const SealedFormat& format, std::string_view what);

}  // namespace lockstep::checkpoint
