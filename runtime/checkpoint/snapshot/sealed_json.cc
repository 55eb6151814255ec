// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/sealed_json.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/printable.h"
#include "runtime/checkpoint/strict_json.h"

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr const char* kChecksum = "xxh3";
// Later versions may nest deeper than this one's manifest.
constexpr int kMostDepth = 32;

std::string in_file(const Json& json) { return dump_json(json, 1) + "\n"; }

}  // namespace

LaterFormat::LaterFormat(std::string_view what, std::string_view how)
    : Error(fmt::format("{} was written by a later lockstep ({}): update lockstep", what, how)) {}

std::string dump_json(const Json& json, int indent) {
  try {
    return json.dump(indent);
  } catch (const Json::exception& error) {  // the one thing that it refuses
    throw InvalidArgument(fmt::format(
        "snapshot: a name or a text that the program gave is not UTF-8 ({}); give all names and texts in UTF-8",
        error.what()));
  }
}

std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

std::string seal(Json json, const SealedFormat& format) {
  json["format"] = format.name;
  json["version"] = format.version;
  json[kChecksum] = hex(hash64(dump_json(json)));
  return in_file(json);
}

Json unseal(std::string_view text, const SealedFormat& format, std::string_view what) {
  Json json = parse_json(text, what, kMostDepth);
  if (!json.is_object() || json.value("format", Json()) != format.name) {
    throw CorruptData(fmt::format(
        "{0} is not a {1}: the file's field 'format' is not '{1}'; take another copy of the file", what, format.name));
  }
  const Json says = json.value(kChecksum, Json());
  json.erase(kChecksum);
  const std::string has = hex(hash64(dump_json(json)));
  if (says != has) {
    throw CorruptData(
        fmt::format("{} has the checksum {}, but states the checksum {}: the file was changed after it was written; "
                    "take another copy of the file",
                    what, has, printable(says.dump(), kMostShown)));
  }
  // A flipped bit may leave the same JSON: 1e5 and 1E5, a space and none.
  json[kChecksum] = has;
  if (in_file(json) != text)
    throw CorruptData(fmt::format("{} was changed after it was written; take another copy of the file", what));
  if (const Json version = json.value("version", Json()); version != format.version) {
    const std::string shown = printable(version.dump(), kMostShown);
    if (version.is_number_unsigned() && version > format.version) {
      throw LaterFormat(what, fmt::format("format {}; this one reads up to {}", shown, format.version));
    }
    throw CorruptData(
        fmt::format("{} has format version {}, which no lockstep writes; take another copy of the file", what, shown));
  }
  for (const char* added : {"format", "version", kChecksum}) json.erase(added);
  return json;
}

}  // namespace lockstep::checkpoint
