// SPDX-License-Identifier: Apache-2.0
// Snapshots of items of which each rank has a share: all ranks write, and meet over the group's store, for their
// threads may not start collectives beside the training's.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "runtime/base/logging.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/comm/collective_call.h"
#include "runtime/job/step_board.h"
#include "runtime/snapshot/snapshots_impl.h"

namespace lockstep {

namespace fs = std::filesystem;
using checkpoint::Manifest, checkpoint::SlicedTensor;

namespace {

constexpr std::size_t kMostNamed = 4;  // ranks in a message
constexpr const char* kWritten = "written";
constexpr const char* kManifest = "manifest";
constexpr const char* kNotAwaited = "?";  // in the manifest's place

// What a rank tells rank 0 once its files are written.
struct Written {
  std::string failure = {};
  bool keeps_disk = false;
  std::string part = {};  // of the manifest

  static constexpr auto kFields = [](auto& written, auto& fields) {
    fields.lines("failure", written.failure);
    fields("keeps-disk", written.keeps_disk);
    fields.lines("part", written.part);
  };
};

}  // namespace

bool BasicSnapshots::Impl::is_sharded() const {
  return std::ranges::count(items, checkpoint::ItemKind::sharded, &Item::kind) > 0;
}

void BasicSnapshots::Impl::take_slices(CapturedItem& item) const {
  const std::string file = checkpoint::name_of_share(item.item.name, group->rank());
  std::vector<SnapshotTensor> own;
  for (SnapshotTensor& tensor : item.tensors) {
    const std::int64_t all =
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies());
    const SnapshotShare share = tensor.share.value_or(SnapshotShare{0, group->rank() == 0 ? all : 0});
    SlicedTensor& sliced =
        item.item.sliced.emplace_back(SlicedTensor{.name = tensor.name,
                                                   .dtype = tensor.dtype,
                                                   .shape = tensor.shape,
                                                   .is_transposed = tensor.is_transposed && tensor.share.has_value()});
    if (share.begin == share.end) continue;
    if (std::cmp_not_equal(tensor.bytes.size(),
                           static_cast<std::size_t>(share.end - share.begin) * size_of(tensor.dtype))) {
      throw InvalidArgument(fmt::format("Snapshots: {}: tensor {} has {} bytes for elements {} to {} of {}",
                                        item.item.name, checkpoint::in_quotes(tensor.name), tensor.bytes.size(),
                                        share.begin, share.end, checkpoint::describe(tensor.dtype, tensor.shape)));
    }
    sliced.slices.push_back({file, share.begin, share.end});
    own.push_back(std::move(tensor));
  }
  item.tensors = std::move(own);
}

std::string BasicSnapshots::Impl::open_step(Manifest head) {
  head.writer = group->roster().front().describe();  // as the generation's record has it
  std::string own = writer->is_busy() ? kBusy : "";
  fs::path made;
  try {
    // An attempt before this one at the same step may have left them.
    const fs::path path = folder / checkpoint::name_of_snapshot(head.step, head.generation);
    for (const char* key : {kWritten, kManifest}) group->store().erase(key_of(path, group->rank(), key));
    if (own.empty()) record_start();
    if (own.empty() && keeps_disk) made = checkpoint::begin_snapshot(folder, head);
  } catch (const Error& error) {
    own = error.what();
  }
  std::vector<std::string> failures;
  bool is_busy = false;
  const std::vector<std::string> all =
      comm::within_call("Snapshots::step", [&] { return all_gather_text(*group, own); });
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    is_busy = is_busy || all[rank] == kBusy;
    if (all[rank].empty() || all[rank] == kBusy) continue;
    failures.push_back(fmt::format("{}: {}", group->roster()[rank].describe(), all[rank]));
  }
  if (!is_busy && failures.empty()) return {};
  if (!made.empty()) checkpoint::abandon_snapshot(made);
  return is_busy ? kBusy : joined(failures, std::identity(), "; ", kMostNamed);
}

std::string BasicSnapshots::Impl::key_of(const fs::path& snapshot, int rank, const char* what) const {
  return fmt::format("snapshots/{}/{}/{}", snapshot.filename().string(), rank, what);
}

void BasicSnapshots::Impl::write_slices(Manifest head, std::span<const checkpoint::ItemSource> sources,
                                        const std::exception_ptr& why_not) {
  const fs::path path = folder / checkpoint::name_of_snapshot(head.step, head.generation);
  std::string failure;
  try {
    if (why_not) std::rethrow_exception(why_not);
    with_room([&] { checkpoint::write_items(path, head, sources, group->rank()); }, head.step);
  } catch (const std::exception& error) {
    failure = fmt::format("{}: {}", who(), error.what());
  }
  if (group->rank() == 0) return join_slices(path, std::move(head), std::move(failure));
  group->store().set(
      key_of(path, group->rank(), kWritten),
      write_record(Written{failure, keeps_disk, failure.empty() ? checkpoint::to_text(head) : ""}, Written::kFields));
  if (keeps_disk) copy_manifest(path);
}

void BasicSnapshots::Impl::join_slices(const fs::path& snapshot, Manifest manifest, std::string failure) const {
  // Every rank is waited for, also where one has failed: its files are to be gone with the folder.
  const Deadline deadline = Deadline::after(group->timeout());
  std::vector<std::string> failures;
  if (!failure.empty()) failures.push_back(std::move(failure));
  std::vector<int> keepers;
  for (int rank = 1; rank < group->size(); ++rank) {
    try {
      const std::string key = key_of(snapshot, rank, kWritten);
      const std::string text = group->store().get(key, deadline);
      group->store().erase(key);
      const auto written = require_record<Written>(text, Written::kFields, "its share");
      if (written.keeps_disk) keepers.push_back(rank);
      if (!written.failure.empty()) {
        failures.push_back(written.failure);
      } else {
        checkpoint::join_part(manifest, checkpoint::part_from_text(written.part));
      }
    } catch (const Error& error) {
      failures.push_back(
          fmt::format("{}: {}", group->roster()[static_cast<std::size_t>(rank)].describe(), error.what()));
    }
  }
  std::exception_ptr reason;
  try {
    if (!failures.empty()) throw Error(joined(failures, std::identity(), "; ", kMostNamed));
    with_room([&] { checkpoint::finish_snapshot(snapshot, manifest); }, manifest.step);
  } catch (...) {
    reason = std::current_exception();
    checkpoint::abandon_snapshot(snapshot);
  }
  for (const int rank : keepers) {
    group->store().set(key_of(snapshot, rank, kManifest), reason ? std::string() : checkpoint::to_text(manifest));
  }
  if (reason) std::rethrow_exception(reason);
  keep_saved_step(manifest.step);
  clean(options.keep);
}

void BasicSnapshots::Impl::copy_manifest(const fs::path& snapshot) {
  // Rank 0 begins to wait for the others within a timeout, and waits as long again. If it does not answer the files
  // stay: the snapshot is whole if its manifest is on rank 0's disk.
  const std::string key = key_of(snapshot, group->rank(), kManifest);
  const std::string text = group->store().get(
      key, Deadline::after(group->timeout()).is_never() ? Deadline::never() : Deadline::after(2 * group->timeout()));
  group->store().erase(key);
  if (text == kNotAwaited) return;
  if (text.empty()) return checkpoint::abandon_snapshot(snapshot);  // rank 0 logs why
  const Manifest manifest = checkpoint::manifest_from_text(text);
  // From here on the files are part of a saved snapshot, whether this disk takes the copy or not.
  saved_elsewhere.emplace(manifest.step, manifest.generation);
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
  clean(options.keep);
  if (!failure.empty()) copy();  // which may have room now
  if (failure.empty()) return;
  log_warn("snapshots: step {} is saved, but for the copy of its manifest on the disk of {}: {}", manifest.step, who(),
           failure);
}

void BasicSnapshots::Impl::give_up_waiting() const {
  if (being_written < 0 || !is_sharded()) return;
  const fs::path path = checkpoint::name_of_snapshot(being_written, generation);
  const auto set_if_absent = [&](int rank, const char* what, std::string_view value) {
    group->store().compare_set(key_of(path, rank, what), "", value);
  };
  if (group->rank() != 0) return set_if_absent(group->rank(), kManifest, kNotAwaited);
  for (int rank = 1; rank < group->size(); ++rank) {
    const std::string failure = fmt::format("{} had not written its share when rank 0 ended",
                                            group->roster()[static_cast<std::size_t>(rank)].describe());
    set_if_absent(rank, kWritten, write_record(Written{.failure = failure}, Written::kFields));
  }
}

}  // namespace lockstep
