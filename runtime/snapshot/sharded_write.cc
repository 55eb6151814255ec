// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/sharded_write.h"

#include <fmt/format.h>

#include <functional>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/comm/collective_call.h"
#include "runtime/job/step_board.h"

namespace lockstep {

namespace fs = std::filesystem;
using checkpoint::Manifest;

namespace {

constexpr std::size_t kMostNamed = 4;  // the largest number of ranks in a message
constexpr const char* kWritten = "written";
constexpr const char* kManifest = "manifest";
constexpr const char* kNotAwaited = "?";  // the value that says that the rank no longer waits for the manifest

// Written is the message that a rank sends to rank 0 after the rank has written its files.
struct Written {
  std::string failure = {};
  bool keeps_disk = false;
  std::string part = {};  // the rank's part of the manifest

  static constexpr auto kFields = [](auto& written, auto& fields) {
    fields.lines("failure", written.failure);
    fields("keeps-disk", written.keeps_disk);
    fields.lines("part", written.part);
  };
};

std::string key_of(const fs::path& snapshot, int rank, const char* what) {
  return fmt::format("snapshots/{}/{}/{}", snapshot.filename().string(), rank, what);
}

void join(ProcessGroup& group, Catalogue& catalogue, const fs::path& snapshot, Manifest manifest, std::string failure) {
  // Wait for every rank even after one rank has failed, so that no rank still writes files when the folder is removed.
  const Deadline deadline = Deadline::after(group.timeout());
  std::vector<std::string> failures;
  if (!failure.empty()) failures.push_back(std::move(failure));
  std::vector<int> keepers;
  for (int rank = 1; rank < group.size(); ++rank) {
    try {
      const std::string key = key_of(snapshot, rank, kWritten);
      const std::string text = group.store().get(key, deadline);
      group.store().erase(key);
      const auto written = require_record<Written>(text, Written::kFields, "its shard");
      if (written.keeps_disk) keepers.push_back(rank);
      if (!written.failure.empty()) {
        failures.push_back(written.failure);
      } else {
        checkpoint::join_part(manifest, checkpoint::part_from_text(written.part));
      }
    } catch (const Error& error) {
      failures.push_back(
          fmt::format("{}: {}", group.roster()[static_cast<std::size_t>(rank)].describe(), error.what()));
    }
  }
  // The manifest makes the files a snapshot. If the job crashes before the manifest is durable, the disks have files
  // without a manifest, which the next start ignores and the next save removes. If the job crashes after the manifest
  // is durable, the snapshot is complete, even if no other rank has a copy of the manifest.
  std::exception_ptr reason;
  try {
    if (!failures.empty()) throw Error(joined(failures, std::identity(), "; ", kMostNamed));
    catalogue.with_room([&] { checkpoint::finish_snapshot(snapshot, manifest); }, manifest.step);
  } catch (...) {
    reason = std::current_exception();
    checkpoint::abandon_snapshot(snapshot);
  }
  for (const int rank : keepers) {
    group.store().set(key_of(snapshot, rank, kManifest), reason ? std::string() : checkpoint::to_text(manifest));
  }
  if (reason) std::rethrow_exception(reason);
  keep_saved_step(manifest.step);
  // Call clean() last, so that an older snapshot is removed only after the newer snapshot is durable.
  catalogue.clean();
}

void copy_manifest(ProcessGroup& group, Catalogue& catalogue, const fs::path& snapshot) {
  // Wait for two of the group's timeouts, because rank 0 may begin to wait up to one timeout later than this rank, and
  // may then wait for another timeout. If rank 0 does not answer, this rank keeps the files, because the snapshot is
  // complete if the manifest is on rank 0's disk.
  const std::string key = key_of(snapshot, group.rank(), kManifest);
  const std::string text = group.store().get(
      key, Deadline::after(group.timeout()).is_never() ? Deadline::never() : Deadline::after(2 * group.timeout()));
  group.store().erase(key);
  if (text == kNotAwaited) return;
  if (text.empty()) return checkpoint::abandon_snapshot(snapshot);  // rank 0 logs the reason
  const Manifest manifest = checkpoint::manifest_from_text(text);
  // Rank 0's disk has the manifest, so the files on this disk belong to a saved snapshot even if copying the manifest
  // fails. Without note_saved_elsewhere(), clean() would remove the files, as if a crash had left them.
  catalogue.note_saved_elsewhere(manifest.step, manifest.generation);
  std::string failure;
  const auto copy = [&] {
    try {
      failure.clear();
      checkpoint::finish_snapshot(snapshot, manifest);
    } catch (const SystemError& error) {
      failure = error.what();
    }
  };
  copy();
  catalogue.clean();
  if (!failure.empty()) copy();  // clean() may have made room
  if (failure.empty()) return;
  log_warn(
      "snapshots: step {} is saved, except for the copy of its manifest on the disk of {}: {}; make room on that disk",
      manifest.step, catalogue.who(), failure);
}

}  // namespace

std::string open_sharded(ProcessGroup& group, Catalogue& catalogue, Manifest head, bool is_busy) {
  head.writer = group.roster().front().describe();  // the writer that the generation's record has
  std::string own = is_busy ? kBusy : "";
  fs::path made;
  try {
    // Erase the keys that an earlier attempt to save the same step may have left. Erase the keys before
    // all_gather_text(), because no rank sets new keys before all ranks have called all_gather_text().
    const fs::path path = catalogue.path_of(head.step);
    for (const char* key : {kWritten, kManifest}) group.store().erase(key_of(path, group.rank(), key));
    if (own.empty()) catalogue.record_start();
    if (own.empty() && catalogue.keeps_disk()) made = checkpoint::begin_snapshot(catalogue.folder(), head);
  } catch (const Error& error) {
    own = error.what();
  }
  // Call all_gather_text() after the folders are made, because a rank may write to a folder that another rank makes.
  std::vector<std::string> failures;
  bool is_any_busy = false;
  const std::vector<std::string> all =
      comm::within_call("Snapshots::step", [&] { return all_gather_text(group, own); });
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    is_any_busy = is_any_busy || all[rank] == kBusy;
    if (all[rank].empty() || all[rank] == kBusy) continue;
    failures.push_back(fmt::format("{}: {}", group.roster()[rank].describe(), all[rank]));
  }
  if (!is_any_busy && failures.empty()) return {};
  if (!made.empty()) checkpoint::abandon_snapshot(made);
  return is_any_busy ? kBusy : joined(failures, std::identity(), "; ", kMostNamed);
}

void write_sharded(ProcessGroup& group, Catalogue& catalogue, Manifest head,
                   std::span<const checkpoint::ItemSource> sources, const std::exception_ptr& why_not) {
  const fs::path path = catalogue.path_of(head.step);
  std::string failure;
  try {
    if (why_not) std::rethrow_exception(why_not);
    catalogue.with_room([&] { checkpoint::write_items(path, head, sources, group.rank()); }, head.step);
  } catch (const std::exception& error) {
    failure = fmt::format("{}: {}", catalogue.who(), error.what());
  }
  if (group.rank() == 0) return join(group, catalogue, path, std::move(head), std::move(failure));
  // Set this rank's key last, because the key tells rank 0 that the files are durable. If this rank is killed before it
  // sets the key, the files stay without a manifest, and rank 0 waits for the key until the group fails or the timeout
  // passes.
  group.store().set(
      key_of(path, group.rank(), kWritten),
      write_record(Written{failure, catalogue.keeps_disk(), failure.empty() ? checkpoint::to_text(head) : ""},
                   Written::kFields));
  if (catalogue.keeps_disk()) copy_manifest(group, catalogue, path);
}

void give_up_sharded(ProcessGroup& group, const Catalogue& catalogue, std::int64_t step) {
  // Don't overwrite a key that exists, because the snapshot still becomes complete if every rank has set its key
  // "written".
  const fs::path path = catalogue.path_of(step);
  const auto set_if_absent = [&](int rank, const char* what, std::string_view value) {
    group.store().compare_set(key_of(path, rank, what), "", value);
  };
  if (group.rank() != 0) return set_if_absent(group.rank(), kManifest, kNotAwaited);
  for (int rank = 1; rank < group.size(); ++rank) {
    const std::string failure = fmt::format("{} had not written its shard when rank 0 ended",
                                            group.roster()[static_cast<std::size_t>(rank)].describe());
    set_if_absent(rank, kWritten, write_record(Written{.failure = failure}, Written::kFields));
  }
}

}  // namespace lockstep
