// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/generations.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <ctime>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/process_token.h"
#include "runtime/checkpoint/file_error.h"
#include "runtime/checkpoint/snapshot/files.h"
#include "runtime/checkpoint/snapshot/sealed_json.h"
#include "runtime/checkpoint/storage.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr SealedFormat kGenerationFormat{.name = "lockstep generation", .version = 1};
constexpr std::string_view kPrefix = "generation-";
constexpr std::string_view kSuffix = ".json";
constexpr std::string_view kClaim = ".json.claim.";
constexpr std::size_t kMostWriter = 200;
constexpr std::size_t kMostOfRecord = std::size_t{1} << 16;

std::string name_of(std::int64_t number) { return fmt::format("{}{:06}{}", kPrefix, number, kSuffix); }

Generation read_generation(const fs::path& path, std::int64_t number) {
  try {
    const nlohmann::json json = unseal(read_text(path, kMostOfRecord), kGenerationFormat, "the record");
    const auto words = [&](const char* name) {
      const std::string text = json.at(name).get<std::string>();
      return printable(text, text.size());
    };
    Generation generation{
        .number = json.at("generation").get<std::int64_t>(), .writer = words("writer"), .time = words("time")};
    if (json.contains("from_step")) generation.from_step = json.at("from_step").get<std::int64_t>();
    if (generation.number != number) throw CorruptData(fmt::format("it is that of generation {}", generation.number));
    return generation;
  } catch (const LaterFormat& error) {
    return {
        .number = number, .why_not = fmt::format("'{}': {}", path.string(), error.what()), .is_of_later_format = true};
  } catch (const CorruptData& error) {
    return {.number = number, .why_not = fmt::format("'{}': {}", path.string(), error.what())};
  } catch (const nlohmann::json::exception& error) {
    return {.number = number, .why_not = fmt::format("'{}': {}", path.string(), printable(error.what(), 200))};
  }
}

}  // namespace

std::string writer_in_record(const std::string& writer) { return printable(writer, kMostWriter); }

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

std::vector<Generation> list_generations(const fs::path& folder) {
  std::vector<Generation> generations;
  for (const std::string& name : names_in(folder)) {
    std::string_view rest = name;
    const auto number = take_number(rest, kPrefix);
    if (number && rest == kSuffix) generations.push_back(read_generation(folder / name, *number));
  }
  std::ranges::sort(generations, {}, &Generation::number);
  return generations;
}

bool record_generation(const fs::path& folder, const Generation& generation) {
  const std::string writer = writer_in_record(generation.writer);
  nlohmann::json json = {{"generation", generation.number}, {"writer", writer}, {"time", generation.time}};
  if (generation.from_step) json["from_step"] = *generation.from_step;
  const fs::path path = folder / name_of(generation.number);
  static std::atomic<unsigned> claims{0};
  const fs::path claim = path.string() + fmt::format(".claim.{:016x}.{}", process_token(), ++claims);
  // The record is durable before it gets its name, so that it is there whole or not at all. A crash here leaves a
  // claim, which goes once the number has a record.
  write_text(claim, seal(std::move(json), kGenerationFormat));
  // If two starts claim one number, link(2) takes one of them, on a network file system too.
  observe({.kind = StorageOperation::Kind::link, .path = claim, .to = path});
  int error = ::link(claim.c_str(), path.c_str()) == 0 ? 0 : errno;
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS) {
    // On a file system without links the process that creates the name has the number, and the record replaces the
    // name.
    const UniqueFd name(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
    error = name && ::rename(claim.c_str(), path.c_str()) == 0 ? 0 : errno;
  }
  // One sync for both names, before this returns: nothing that this start writes may outlive the record that fences the
  // runs before it.
  remove_name(claim);
  sync_folder(folder);
  if (error == EEXIST) {
    const Generation other = read_generation(path, generation.number);
    if (other.writer == writer && other.time == generation.time) return false;
    throw InvalidArgument(
        fmt::format("snapshots: the folder '{}' has just been taken over by {}; two jobs can't share a folder: give "
                    "this job another folder",
                    folder.string(), other.writer.empty() ? "another process" : other.writer));
  }
  if (error != 0) throw file_error("writing", path, "link", error);
  return true;
}

void remove_spent_records(const fs::path& folder) {
  const std::vector<std::string> names = names_in(folder);
  std::vector<std::string> spent;
  for (const std::string& name : names) {
    std::string_view rest = name;
    const auto number = take_number(rest, kPrefix);
    // A claim on a number without a record may belong to a start that is just happening.
    if (!number || !rest.starts_with(kClaim)) continue;
    if (std::binary_search(names.begin(), names.end(), name_of(*number))) spent.push_back(name);
  }
  // From the newest back: tracks the earliest step from which a seen generation resumed.
  std::vector<Generation> generations = list_generations(folder);
  std::optional<std::int64_t> furthest_back;
  for (auto it = generations.rbegin(); it != generations.rend(); ++it) {
    if (!it->why_not.empty()) continue;
    const std::int64_t from = it->from_step.value_or(-1);
    if (furthest_back && *furthest_back <= from) {
      spent.push_back(name_of(it->number));
    } else {
      furthest_back = from;
    }
  }
  // In any order: each of these is useless by a record that stays.
  for (const std::string& name : spent) remove_name(folder / name);
  if (!spent.empty()) sync_folder(folder);
}

}  // namespace lockstep::checkpoint
