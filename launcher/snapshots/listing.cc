// SPDX-License-Identifier: Apache-2.0
#include "launcher/snapshots/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lockstep/base/error.h"
#include "runtime/base/text.h"

namespace lockstep::launcher::snapshots {
namespace {

namespace fs = std::filesystem;
using checkpoint::FoundSnapshot, checkpoint::Generation, checkpoint::Manifest, checkpoint::SnapshotState;
using Json = nlohmann::json;

const char* name_of(SnapshotState state) {
  switch (state) {
    case SnapshotState::whole: return "whole";
    case SnapshotState::partial: return "partial";
    case SnapshotState::unfinished: return "unfinished";
    case SnapshotState::fenced: return "fenced";
    case SnapshotState::damaged: return "damaged";
    case SnapshotState::later: return "later";
  }
  return "?";
}

// JSON lacks infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value)); }

void verify_all(std::vector<FoundSnapshot>& snapshots) {
  for (FoundSnapshot& snapshot : snapshots) {
    if (!snapshot.is_saved()) continue;
    try {
      checkpoint::verify_snapshot(snapshot);
    } catch (const CorruptData& error) {
      snapshot.state = SnapshotState::damaged;
      snapshot.why_not = error.what();
    }
  }
}

}  // namespace

Listing list_folder(const fs::path& folder, bool verify) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw InvalidArgument(fmt::format("'{}' is not a folder{}; give the folder of the job's Snapshots", folder.string(),
                                      error ? ": " + error.message() : ""));
  }
  Listing listing{.folder = folder, .is_verified = verify, .snapshots = checkpoint::list_snapshots(folder)};
  listing.generations = checkpoint::list_generations(folder);
  if (listing.snapshots.empty() && fs::exists(folder / "manifest.json", error)) {
    listing.snapshots.push_back(checkpoint::find_snapshot(folder));
  }
  if (verify) verify_all(listing.snapshots);
  return listing;
}

bool has_unreadable(const Listing& listing) {
  return std::any_of(listing.snapshots.begin(), listing.snapshots.end(), [](const FoundSnapshot& it) {
    return it.state == SnapshotState::damaged || it.state == SnapshotState::later;
  });
}

std::string as_text(const Listing& listing) {
  if (listing.snapshots.empty()) {
    return fmt::format("{}: no snapshots{}\n", listing.folder.string(),
                       listing.generations.empty() ? "" : fmt::format("; {} starts", listing.generations.size()));
  }
  using Row = std::array<std::string, 8>;
  std::vector<Row> rows{{"step", "saved", "size", "ranks", "generation", "value", "reason", "state"}};
  for (const FoundSnapshot& it : listing.snapshots) {
    const Manifest known = it.manifest.value_or(Manifest{});
    const bool has = it.manifest.has_value();
    rows.push_back({fmt::format("{}", it.step), has ? known.time : "-", has ? readable_bytes(it.bytes) : "-",
                    has ? fmt::format("{}", known.world_size) : "-", fmt::format("{}", it.generation),
                    known.value ? fmt::format("{}", *known.value) : "-", has ? known.reason : "-",
                    it.why_not.empty() ? (listing.is_verified ? "whole, every byte read" : "whole")
                                       : fmt::format("{}: {}", name_of(it.state), it.why_not)});
  }
  std::array<std::size_t, 8> width{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) text += fmt::format("{:<{}}  ", row[i], width[i]);
    text += row.back() + "\n";
  }
  return text;
}

std::string as_json(const Listing& listing) {
  Json json = {{"folder", listing.folder.string()},
               {"verified", listing.is_verified},
               {"snapshots", Json::array()},
               {"generations", Json::array()}};
  for (const FoundSnapshot& it : listing.snapshots) {
    Json one = {{"path", it.path.string()},
                {"step", it.step},
                {"generation", it.generation},
                {"state", name_of(it.state)},
                {"why_not", it.why_not}};
    if (it.manifest) {
      one.update({{"time", it.manifest->time},
                  {"bytes", it.bytes},
                  {"world_size", it.manifest->world_size},
                  {"reason", it.manifest->reason},
                  {"writer", it.manifest->writer}});
      if (it.manifest->value) one["value"] = number(*it.manifest->value);
    }
    json["snapshots"].push_back(std::move(one));
  }
  for (const Generation& it : listing.generations) {
    Json one = {{"generation", it.number}, {"writer", it.writer}, {"time", it.time}, {"why_not", it.why_not}};
    if (it.from_step) one["from_step"] = *it.from_step;
    json["generations"].push_back(std::move(one));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::launcher::snapshots
