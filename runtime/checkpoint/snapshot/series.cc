// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/series.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <iterator>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/host.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/checkpoint/atomic_file.h"
#include "runtime/checkpoint/snapshot/files.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/item_tensors.h"
#include "runtime/checkpoint/snapshot/sealed_json.h"
#include "runtime/checkpoint/storage.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kManifest = "manifest.json";

// The size of the file; nullopt if it is not there. CorruptData, SystemError.
std::optional<std::uint64_t> size_of_file(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return static_cast<std::uint64_t>(status.st_size);
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  fail_to_read(path, "stat", errno);
}

void set(FoundSnapshot& snapshot, SnapshotState state, std::string why_not) {
  snapshot.state = state;
  snapshot.why_not = std::move(why_not);
}

void read_manifest(FoundSnapshot& snapshot) {
  try {
    if (!size_of_file(snapshot.path / kManifest)) {
      return set(snapshot, SnapshotState::unfinished, "it was not finished: there is no manifest.json in it");
    }
    const Manifest& manifest = snapshot.manifest.emplace(manifest_from_text(read_text(snapshot.path / kManifest)));
    for (const ManifestFile& file : manifest.files) snapshot.bytes += file.bytes;
    // Ranks write shards to their own disks.
    const bool may_be_partial = std::ranges::count(manifest.items, ItemKind::sharded, &ManifestItem::kind) > 0;
    for (const ManifestFile& file : manifest.files) {
      const auto bytes = size_of_file(snapshot.path / file.name);
      if (!bytes && may_be_partial) {
        if (snapshot.missing.empty()) {
          set(snapshot, SnapshotState::partial,
              fmt::format("{} is missing, which rank {} wrote; look for this file on another host's disk", file.name,
                          file.owner));
        }
        snapshot.missing.push_back(file.name);
        continue;
      }
      if (!bytes) throw CorruptData(fmt::format("{} is missing", file.name));
      if (*bytes != file.bytes) {
        throw CorruptData(fmt::format(
            "the snapshot's file {} has {} bytes, and the manifest says {}; the file is damaged: use another snapshot",
            file.name, *bytes, file.bytes));
      }
    }
  } catch (const LaterFormat& error) {
    set(snapshot, SnapshotState::later, error.what());
  } catch (const CorruptData& error) {
    set(snapshot, SnapshotState::damaged, error.what());
  }
}

// Marks the snapshot as fenced if a later generation resumed from an earlier step, as damaged or later if that is not
// known.
void apply_fences(FoundSnapshot& snapshot, const std::vector<Generation>& generations) {
  if (!snapshot.is_saved()) return;
  for (const Generation& later : generations) {
    if (later.number <= snapshot.generation) continue;
    if (!later.why_not.empty()) {
      return set(snapshot, later.is_of_later_format ? SnapshotState::later : SnapshotState::damaged,
                 fmt::format("whether generation {} resumed from it {}: {}", later.number,
                             later.is_of_later_format ? "can't be read" : "is lost", later.why_not));
    }
    if (later.from_step && *later.from_step >= snapshot.step) continue;
    return set(snapshot, SnapshotState::fenced,
               fmt::format("generation {} ({}) did not resume from it, but from {}", later.number, later.writer,
                           later.from_step ? fmt::format("step {}", *later.from_step) : "nothing"));
  }
}

// InvalidArgument unless the run that `head` is of is the folder's newest. A survivor's disk may know of none.
void refuse_if_fenced(const fs::path& folder, const Manifest& head, bool is_survivor) {
  bool is_recorded = is_survivor;
  for (const Generation& other : list_generations(folder)) {
    is_recorded = is_recorded || other.number == head.generation;
    if (other.number == head.generation && !is_survivor && other.why_not.empty() &&
        other.writer != writer_in_record(head.writer)) {
      throw InvalidArgument(
          fmt::format("snapshots: step {} is not saved: the folder '{}' was emptied, and {} has begun a new run in the "
                      "folder; end this run",
                      head.step, folder.string(), other.writer));
    }
    if (other.number <= head.generation) continue;
    throw InvalidArgument(
        fmt::format("snapshots: step {} is not saved: {} has resumed this job in '{}', as generation {}, and this run "
                    "is the older generation {}; end this run",
                    head.step, other.writer.empty() ? "another run" : other.writer, folder.string(), other.number,
                    head.generation));
  }
  if (!is_recorded) {
    throw InvalidArgument(
        fmt::format("snapshots: step {} is not saved: the record of this run, generation {}, is gone from '{}'; if the "
                    "folder was moved or emptied, put it back; otherwise end this run and start the job again",
                    head.step, head.generation, folder.string()));
  }
}

}  // namespace

std::vector<FoundSnapshot> list_snapshots(const fs::path& folder) {
  const std::vector<Generation> generations = list_generations(folder);
  std::vector<FoundSnapshot> found;
  for (const std::string& name : names_in(folder)) {
    const auto numbers = numbers_of(name);
    std::error_code ignored;
    if (!numbers || !fs::is_directory(folder / name, ignored)) continue;
    FoundSnapshot snapshot{.path = folder / name, .step = numbers->step, .generation = numbers->generation};
    read_manifest(snapshot);
    if (snapshot.manifest && std::pair(snapshot.manifest->step, snapshot.manifest->generation) !=
                                 std::pair(numbers->step, numbers->generation)) {
      set(snapshot, SnapshotState::damaged,
          fmt::format("its manifest is that of step {} of generation {}", snapshot.manifest->step,
                      snapshot.manifest->generation));
    }
    // Last, for it only judges what is whole so far: a damaged one stays damaged, also if a later run fences it.
    apply_fences(snapshot, generations);
    found.push_back(std::move(snapshot));
  }
  std::sort(found.begin(), found.end(), [](const FoundSnapshot& a, const FoundSnapshot& b) {
    return std::tie(a.step, a.generation, a.path) > std::tie(b.step, b.generation, b.path);
  });
  return found;
}

FoundSnapshot find_snapshot(const fs::path& path) {
  FoundSnapshot snapshot{.path = path};
  read_manifest(snapshot);
  if (snapshot.manifest) {
    snapshot.step = snapshot.manifest->step;
    snapshot.generation = snapshot.manifest->generation;
  }
  return snapshot;
}

FoundSnapshot open_snapshot(const fs::path& path) {
  FoundSnapshot snapshot = find_snapshot(path);
  switch (snapshot.state) {
    case SnapshotState::whole:
    case SnapshotState::fenced: break;  // by records, which are its folder's
    case SnapshotState::unfinished:
      throw InvalidArgument(
          fmt::format("'{}' is not a snapshot: there is no manifest.json in it; give one of the "
                      "folders step-... that 'lockstep snapshots FOLDER' lists",
                      path.string()));
    case SnapshotState::partial:
      throw InvalidArgument(
          fmt::format("the snapshot '{}' is in parts on several hosts: {}; copy the step's folders of all hosts into "
                      "one folder, and name that folder",
                      path.string(), snapshot.why_not));
    case SnapshotState::damaged:
      throw CorruptData(fmt::format("the snapshot '{}' is damaged; name another snapshot; the damage: {}",
                                    path.string(), snapshot.why_not));
    case SnapshotState::later:
      throw InvalidArgument(fmt::format("the snapshot '{}' can't be read by this version of lockstep: {}",
                                        path.string(), snapshot.why_not));
  }
  return snapshot;
}

void verify_snapshot(const FoundSnapshot& snapshot) {
  if (!snapshot.is_saved()) throw CorruptData(snapshot.why_not);
  for (const ManifestFile& file : snapshot.manifest->files) {
    if (std::ranges::count(snapshot.missing, file.name) == 0) verify_file(snapshot, file);
  }
}

void verify_file(const FoundSnapshot& snapshot, const ManifestFile& file) {
  std::vector<std::byte> block(std::size_t{1} << 20);
  const UniqueFd fd = open_to_read(snapshot.path / file.name);
  Hasher64 hash;
  std::uint64_t bytes = 0;
  for (;;) {
    const ssize_t got = uninterrupted([&] { return ::read(fd.get(), block.data(), block.size()); });
    if (got < 0) fail_to_read(snapshot.path / file.name, "read", errno);
    if (got == 0) break;
    hash.add(block.data(), static_cast<std::size_t>(got));
    bytes += static_cast<std::uint64_t>(got);
  }
  if (bytes != file.bytes || hash.value() != file.xxh3) {
    throw CorruptData(
        fmt::format("the snapshot's file {} is damaged: it has {} bytes with checksum {}, and the manifest says {} "
                    "bytes with checksum {}; use another snapshot",
                    file.name, bytes, hex(hash.value()), file.bytes, hex(file.xxh3)));
  }
  SnapshotFiles(snapshot.path).check_slices(*snapshot.manifest, file.name);
}

std::int64_t newest_generation(const fs::path& folder) {
  std::int64_t newest = 0;
  for (const Generation& one : list_generations(folder)) newest = std::max(newest, one.number);
  for (const std::string& name : names_in(folder)) {
    if (const auto numbers = numbers_of(name)) newest = std::max(newest, numbers->generation);
  }
  return newest;
}

fs::path begin_snapshot(const fs::path& folder, const Manifest& head, std::optional<int> survivor) {
  refuse_if_fenced(folder, head, survivor.has_value());
  fs::path path = folder / name_of_snapshot(head.step, head.generation, survivor);
  // A folder of that name is an earlier try of this start. A crash from here on leaves a folder without a manifest: no
  // snapshot, unless another disk has the manifest of its files, and clean() removes it.
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(path, ignored))) remove_snapshot(path);
  make_folder(path);
  return path;
}

void write_items(const fs::path& snapshot, Manifest& part, std::span<const ItemSource> items, int rank) {
  std::vector<ManifestFile> files;
  std::vector<ManifestItem> written_items;
  for (const ItemSource& source : items) {
    ManifestItem item = source.item;
    const bool is_sharded = item.kind == ItemKind::sharded;
    if (!source.tensors.empty()) {
      // Durable before the next file begins, under a name that means nothing without a manifest.
      const std::string name = is_sharded ? name_of_shard(item.name, rank) : item.name + ".safetensors";
      const WrittenFile written = write_tensors(snapshot / name, source.tensors, {{"format", "pt"}});
      files.push_back({.name = name,
                       .bytes = written.bytes,
                       .xxh3 = written.xxh3,
                       .owner = is_sharded ? rank : 0,
                       .host = host_name()});
      if (!is_sharded) item.tensors = name;
    }
    written_items.push_back(std::move(item));
  }
  // Only now: a write that failed on a full disk is tried again with the same `part`.
  std::ranges::move(files, std::back_inserter(part.files));
  std::ranges::move(written_items, std::back_inserter(part.items));
}

void finish_snapshot(const fs::path& snapshot, const Manifest& manifest, std::optional<int> survivor) {
  check_references(manifest);
  // Looked at again, after the long part: another run may have taken the job over while the files were written. One
  // that does so between this and the next line fences the snapshot, and readers see that by the records.
  refuse_if_fenced(snapshot.parent_path(), manifest, survivor.has_value());
  // All files are durable, so this one name is the step from no snapshot to a whole one, whenever the power goes.
  write_text(snapshot / kManifest, to_text(manifest));
}

void abandon_snapshot(const fs::path& snapshot) noexcept {
  try {
    remove_snapshot(snapshot);
  } catch (const std::exception& error) {
    log_warn("snapshots: could not remove the folder '{}' of an unfinished snapshot: {}; remove this folder yourself",
             snapshot.string(), error.what());
  }
}

std::string name_of_shard(const std::string& item, int rank) {
  return fmt::format("{}.r{:04}.safetensors", item, rank);
}

Manifest write_snapshot(const fs::path& folder, Manifest head, std::span<const ItemSource> items,
                        std::optional<int> survivor) {
  const fs::path path = begin_snapshot(folder, head, survivor);
  try {
    write_items(path, head, items, 0);
    finish_snapshot(path, head, survivor);
  } catch (...) {
    abandon_snapshot(path);
    throw;
  }
  return head;
}

void set_value(const FoundSnapshot& snapshot, double value) {
  // Read anew, and replaced as a whole: the files that it lists stay, and readers find the old or the new text.
  Manifest manifest = manifest_from_text(read_text(snapshot.path / kManifest));
  manifest.value = value;
  write_text(snapshot.path / kManifest, to_text(manifest));
}

void remove_snapshot(const fs::path& snapshot) {
  // A folder that somebody linked here stays theirs.
  std::error_code ignored;
  if (!fs::is_symlink(snapshot, ignored)) {
    // The manifest is durably gone before the first file goes: else a loss of power could keep it and not the files.
    // Synced also if it is not there: the process that removed it may have died before it synced the folder.
    remove_name(snapshot / kManifest);
    sync_folder(snapshot);
    for (const std::string& name : names_in(snapshot)) remove_name(snapshot / name);
  }
  remove_name(snapshot);
}

std::string name_of_snapshot(std::int64_t step, std::int64_t generation, std::optional<std::int64_t> survivor) {
  const std::string name = fmt::format("step-{:012}-g{:06}", step, generation);
  return survivor ? fmt::format("{}-r{}", name, *survivor) : name;
}

std::optional<SnapshotNumbers> numbers_of(std::string_view name, std::string_view end) {
  std::string_view rest = name;
  const auto step = take_number(rest, "step-");
  const auto generation = step ? take_number(rest, "-g") : std::nullopt;
  const auto survivor = generation ? take_number(rest, "-r") : std::nullopt;
  if (!generation || name != name_of_snapshot(*step, *generation, survivor) + std::string(end)) return std::nullopt;
  return SnapshotNumbers{*step, *generation, survivor};
}

}  // namespace lockstep::checkpoint
