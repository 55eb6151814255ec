// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/series.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"
#include "runtime/base/process_token.h"
#include "runtime/checkpoint/atomic_file.h"
#include "runtime/checkpoint/storage.h"
#include "runtime/checkpoint/strict_json.h"
#include "runtime/checkpoint/written_file.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kManifest = "manifest.json";
constexpr std::size_t kMostManifestBytes = std::size_t{1} << 30;

UniqueFd open_to_read(const fs::path& path) {
  // O_NONBLOCK: a pipe by that name must not block.
  UniqueFd fd(uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!fd) throw SystemError(fmt::format("reading '{}': open", path.string()), errno);
  return fd;
}

std::string read_text(const fs::path& path) {
  const UniqueFd fd = open_to_read(path);
  std::string text;
  if (!read_all(fd.get(), text, kMostManifestBytes)) {
    throw SystemError(fmt::format("reading '{}'", path.string()), errno);
  }
  return text;
}

void write_text(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

// Names of a folder; none if it is not there.
std::vector<std::string> names_in(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw SystemError(fmt::format("listing '{}'", folder.string()), error.value());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "PREFIX123REST": takes prefix and number off the front of `name`.
std::optional<std::int64_t> take_number(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t number = 0;
  const char* const begin = name.data() + prefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  return number;
}

std::string name_of_generation(std::int64_t number) { return fmt::format("generation-{:06}.json", number); }

std::string name_of_snapshot(std::int64_t step, std::int64_t generation) {
  return fmt::format("step-{:012}-g{:06}", step, generation);
}

Generation read_generation(const fs::path& path, std::int64_t number) {
  Generation generation{.number = number};
  try {
    const auto json = parse_json(read_text(path), path.string());
    if (json.contains("from_step") && json["from_step"].is_number_unsigned()) {
      generation.from_step = json["from_step"].get<std::int64_t>();
    }
    generation.writer = json.value("writer", "");
    generation.time = json.value("time", "");
  } catch (const std::exception& error) {
    log_warn("snapshots: '{}' can't be read and counts as a start from nothing: {}", path.string(), error.what());
  }
  return generation;
}

// The first later start that does not go on from it.
const Generation* fence_of(const std::vector<Generation>& generations, std::int64_t step, std::int64_t generation) {
  for (const Generation& later : generations) {
    if (later.number > generation && (!later.from_step || *later.from_step < step)) return &later;
  }
  return nullptr;
}

void read_manifest(FoundSnapshot& snapshot) {
  const fs::path path = snapshot.path / kManifest;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    snapshot.why_not = "it was not finished: there is no manifest.json in it";
    return;
  }
  try {
    Manifest manifest = manifest_from_text(read_text(path));
    if (manifest.step != snapshot.step || manifest.generation != snapshot.generation) {
      throw CorruptData(
          fmt::format("its manifest is that of step {} of generation {}", manifest.step, manifest.generation));
    }
    for (const ManifestFile& file : manifest.files) {
      snapshot.bytes += file.bytes;
      struct stat status {};
      if (::stat((snapshot.path / file.name).c_str(), &status) != 0) {
        throw CorruptData(fmt::format("{}: {}", file.name, errno_text(errno)));
      }
      if (std::cmp_not_equal(status.st_size, file.bytes)) {
        throw CorruptData(
            fmt::format("{} has {} bytes, and the manifest says {}", file.name, status.st_size, file.bytes));
      }
    }
    snapshot.manifest = std::move(manifest);
  } catch (const Error& error) {
    snapshot.why_not = error.what();
  }
}

void remove_snapshot(const fs::path& snapshot) {
  // First what makes it one, so that what a crash leaves is no snapshot.
  if (remove_name(snapshot / kManifest)) sync_folder(snapshot);
  for (const std::string& name : names_in(snapshot)) remove_name(snapshot / name);
  remove_name(snapshot);
}

}  // namespace

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

std::vector<Generation> list_generations(const fs::path& folder) {
  std::vector<Generation> generations;
  for (const std::string& name : names_in(folder)) {
    std::string_view rest = name;
    const auto number = take_number(rest, "generation-");
    if (number && rest == ".json") generations.push_back(read_generation(folder / name, *number));
  }
  std::sort(generations.begin(), generations.end(),
            [](const Generation& a, const Generation& b) { return a.number < b.number; });
  return generations;
}

void record_generation(const fs::path& folder, const Generation& generation) {
  nlohmann::json json = {{"generation", generation.number}, {"writer", generation.writer}, {"time", generation.time}};
  if (generation.from_step) json["from_step"] = *generation.from_step;
  const fs::path path = folder / name_of_generation(generation.number);
  static std::atomic<unsigned> claims{0};
  const fs::path claim = path.string() + fmt::format(".claim.{:016x}.{}", process_token(), ++claims);
  write_text(claim, json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  // Of two that claim one number, link(2) takes one, on a network file system too.
  observe({.kind = StorageOperation::Kind::rename, .path = claim, .to = path});
  const int error = ::link(claim.c_str(), path.c_str()) == 0 ? 0 : errno;
  remove_name(claim);
  sync_folder(folder);
  if (error == EEXIST) {
    const Generation other = read_generation(path, generation.number);
    if (other.writer == generation.writer && other.time == generation.time) return;
    throw InvalidArgument(
        fmt::format("snapshots: '{}' has just been taken over by {}; two jobs can't share a folder: "
                    "give this one another",
                    folder.string(), other.writer));
  }
  if (error != 0) throw SystemError(fmt::format("writing '{}': link", path.string()), error);
}

std::vector<FoundSnapshot> list_snapshots(const fs::path& folder) {
  const std::vector<Generation> generations = list_generations(folder);
  std::vector<FoundSnapshot> found;
  for (const std::string& name : names_in(folder)) {
    std::string_view rest = name;
    const auto step = take_number(rest, "step-");
    const auto generation = step ? take_number(rest, "-g") : std::nullopt;
    if (!generation || !(rest.empty() || (take_number(rest, "-r") && rest.empty()))) continue;
    FoundSnapshot snapshot{.path = folder / name, .step = *step, .generation = *generation};
    read_manifest(snapshot);
    const Generation* const fence = fence_of(generations, *step, *generation);
    if (fence != nullptr && snapshot.why_not.empty()) {
      snapshot.why_not = fmt::format("generation {} ({}) did not go on from it, but from {}", fence->number,
                                     fence->writer.empty() ? "unknown" : fence->writer,
                                     fence->from_step ? fmt::format("step {}", *fence->from_step) : "nothing");
    }
    found.push_back(std::move(snapshot));
  }
  std::sort(found.begin(), found.end(), [](const FoundSnapshot& a, const FoundSnapshot& b) {
    return std::pair(a.step, a.generation) > std::pair(b.step, b.generation);
  });
  return found;
}

void verify_snapshot(const FoundSnapshot& snapshot) {
  if (!snapshot.why_not.empty()) throw CorruptData(snapshot.why_not);
  std::vector<std::byte> block(std::size_t{1} << 20);
  for (const ManifestFile& file : snapshot.manifest->files) {
    const UniqueFd fd = open_to_read(snapshot.path / file.name);
    Hasher64 hash;
    std::uint64_t bytes = 0;
    for (;;) {
      const ssize_t got = uninterrupted([&] { return ::read(fd.get(), block.data(), block.size()); });
      if (got < 0) throw SystemError(fmt::format("reading '{}'", (snapshot.path / file.name).string()), errno);
      if (got == 0) break;
      hash.add(block.data(), static_cast<std::size_t>(got));
      bytes += static_cast<std::uint64_t>(got);
    }
    if (bytes != file.bytes || hash.value() != file.xxh3) {
      throw CorruptData(
          fmt::format("{} is damaged: {} bytes with checksum {:016x}, and the manifest says {} with {:016x}", file.name,
                      bytes, hash.value(), file.bytes, file.xxh3));
    }
  }
}

Manifest write_snapshot(const fs::path& folder, Manifest head, std::span<const ItemSource> items,
                        std::optional<int> survivor) {
  const auto refuse_if_fenced = [&] {
    for (const Generation& other : list_generations(folder)) {
      if (other.number <= head.generation) continue;
      throw InvalidArgument(
          fmt::format("snapshots: step {} is not saved: {} has gone on with this job in '{}', as "
                      "generation {}, and this run is generation {}; end this one",
                      head.step, other.writer, folder.string(), other.number, head.generation));
    }
  };
  refuse_if_fenced();
  const std::string name = name_of_snapshot(head.step, head.generation);
  const fs::path path = folder / (survivor ? fmt::format("{}-r{}", name, *survivor) : name);
  std::error_code ignored;
  if (fs::exists(path, ignored)) remove_snapshot(path);
  make_folders(path);
  for (const ItemSource& source : items) {
    ManifestItem item = source.item;
    if (!source.tensors.empty()) {
      item.tensors = item.name + ".safetensors";
      const WrittenFile written = write_tensors(path / *item.tensors, source.tensors, {{"format", "pt"}});
      head.files.push_back({.name = *item.tensors, .bytes = written.bytes, .xxh3 = written.xxh3});
    }
    head.items.push_back(std::move(item));
  }
  refuse_if_fenced();
  write_text(path / kManifest, to_text(head));
  return head;
}

bool claim_rescue(const fs::path& folder, std::int64_t step, std::int64_t generation) {
  make_folders(folder);
  const fs::path path = folder / (name_of_snapshot(step, generation) + ".rescue");
  const UniqueFd fd(uninterrupted([&] { return ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666); }));
  if (!fd && errno != EEXIST) throw SystemError(fmt::format("snapshots: making '{}'", path.string()), errno);
  return static_cast<bool>(fd);
}

void clean(const fs::path& folder, const Retention& retention) {
  int whole = 0;
  bool has_removed = false;
  for (const FoundSnapshot& snapshot : list_snapshots(folder)) {
    const bool is_kept =
        snapshot.why_not.empty() &&
        (whole++ < retention.keep || (retention.keep_every > 0 && snapshot.step % retention.keep_every == 0));
    // What lost bytes stays to be looked at; nobody restores it, and a step written anew takes its place.
    const bool is_damaged = !snapshot.why_not.empty() && fs::exists(snapshot.path / kManifest) && !snapshot.manifest;
    if (is_kept || is_damaged) continue;
    remove_snapshot(snapshot.path);
    has_removed = true;
  }
  for (const std::string& name : names_in(folder)) {
    if (name.find(".claim.") == name.npos && !name.ends_with(".rescue")) continue;
    remove_name(folder / name);
    has_removed = true;
  }
  if (has_removed) sync_folder(folder);
}

SeriesLock::SeriesLock(const fs::path& folder, const std::string& who) {
  make_folders(folder);
  const fs::path path = folder / "lock";
  fd_.reset(uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); }));
  if (!fd_) throw SystemError(fmt::format("snapshots: opening '{}'", path.string()), errno);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (uninterrupted([&] { return ::fcntl(fd_.get(), F_OFD_SETLK, &lock); }) != 0) {
    if (errno == EAGAIN || errno == EACCES) {
      std::string holder;
      read_all(fd_.get(), holder, 512);
      throw InvalidArgument(
          fmt::format("snapshots: '{}' is in use by {}; two jobs can't share a folder: give this one "
                      "another, or end that one",
                      folder.string(), holder.empty() ? "another process" : printable(holder, 200)));
    }
    log_warn("snapshots: '{}' can't be locked ({}): a second job in this folder would be noticed only when it saves",
             path.string(), errno_text(errno));
    return;
  }
  const std::string text = fmt::format("{} since {}", who, utc_now());
  if (::ftruncate(fd_.get(), 0) != 0 || write_all(fd_.get(), text) != text.size()) {
    throw SystemError(fmt::format("snapshots: writing '{}'", path.string()), errno);
  }
}

}  // namespace lockstep::checkpoint
