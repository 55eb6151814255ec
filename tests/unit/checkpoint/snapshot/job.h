// SPDX-License-Identifier: Apache-2.0
// A job of one rank as its snapshots' files see it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/snapshot/files.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/item_tensors.h"
#include "runtime/checkpoint/snapshot/retention.h"
#include "runtime/checkpoint/snapshot/sealed_json.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/checkpoint/snapshot/series_lock.h"

namespace lockstep::checkpoint {

inline constexpr const char* kWriter = "rank 0 (host n, pid 1)";

// The step is in its tensors and in its values.
inline Manifest save_step(const std::filesystem::path& folder, std::int64_t step, std::int64_t generation,
                          std::size_t elements = 4, std::optional<int> survivor = std::nullopt) {
  const std::vector<float> numbers(elements, static_cast<float>(step));
  const TensorSource tensor{
      .name = "w", .shape = {static_cast<std::int64_t>(elements)}, .bytes = std::as_bytes(std::span(numbers))};
  const std::vector<ItemSource> items{
      {.item = {.name = "model", .type = "Module", .values = {{}}}, .tensors = {tensor}},
      {.item = {.name = "optimizer", .type = "AdamW", .values = {{{"steps", step}}}}, .tensors = {tensor}}};
  return write_snapshot(
      folder,
      {.step = step, .generation = generation, .world_size = 1, .time = "now", .writer = kWriter, .reason = "test"},
      items, survivor);
}

// The step of two ranks, the optimizer in shards: of a matrix of 2 x 3, and each rank's disk by rank, perhaps the same.
// `is_copied`: the second disk gets the manifest too.
inline Manifest save_shards(const std::array<std::filesystem::path, 2>& disks, std::int64_t step,
                            std::int64_t generation, bool is_copied = true) {
  constexpr std::int64_t kFirst = 4, kAll = 6;
  const std::vector<float> numbers(kAll, static_cast<float>(step));
  const std::span<const std::byte> bytes = std::as_bytes(std::span(numbers));
  const Manifest head{
      .step = step, .generation = generation, .world_size = 2, .time = "now", .writer = kWriter, .reason = "test"};
  const auto item = [&](int rank) {
    const std::int64_t begin = rank == 0 ? 0 : kFirst, end = rank == 0 ? kFirst : kAll;
    ItemSource source{
        .item = {.name = "optimizer", .type = "AdamW", .kind = ItemKind::sharded, .values = {{{"steps", step}}}},
        .tensors = {{.name = "w",
                     .shape = {end - begin},
                     .bytes = bytes.subspan(static_cast<std::size_t>(begin) * sizeof(float),
                                            static_cast<std::size_t>(end - begin) * sizeof(float))}}};
    source.item.sliced = {{.name = "w",
                           .shape = {2, 3},
                           .is_transposed = true,
                           .slices = {{name_of_shard("optimizer", rank), begin, end}}}};
    return source;
  };
  const bool is_shared = disks[0] == disks[1];
  const std::filesystem::path snapshot = begin_snapshot(disks[0], head);
  const std::filesystem::path other = is_shared ? snapshot : begin_snapshot(disks[1], head);
  Manifest part = head;
  write_items(other, part, std::vector<ItemSource>{item(1)}, 1);
  Manifest manifest = head;
  const ItemSource model{
      .item = {.name = "model", .type = "Module", .values = {{}}},
      .tensors = {{.name = "w", .shape = {kFirst}, .bytes = bytes.subspan(0, kFirst * sizeof(float))}}};
  write_items(snapshot, manifest, std::vector<ItemSource>{model, item(0)}, 0);
  join_part(manifest, part);
  finish_snapshot(snapshot, manifest);
  if (!is_shared && is_copied) finish_snapshot(other, manifest);
  return manifest;
}

// That it is whole, and has what save_step() or save_shards() wrote.
inline void expect_step(const FoundSnapshot& snapshot) {
  ASSERT_NO_THROW(verify_snapshot(snapshot)) << snapshot.path;
  SnapshotFiles files(snapshot.path);
  for (const ManifestItem& item : snapshot.manifest->items) {
    for (const SlicedTensor& tensor : files.tensors_of(item)) {
      const std::vector<std::byte> bytes = read_whole(tensor, files);
      std::vector<float> numbers(bytes.size() / sizeof(float));
      std::memcpy(numbers.data(), bytes.data(), bytes.size());
      for (const float number : numbers) ASSERT_EQ(number, static_cast<float>(snapshot.step)) << snapshot.path;
    }
  }
  ASSERT_EQ(get_int(snapshot.manifest->items.at(1).values.at(0), "steps"), snapshot.step);
}

// The newest that a run would go on from.
inline std::optional<FoundSnapshot> newest_whole(const std::filesystem::path& folder) {
  for (FoundSnapshot& snapshot : list_snapshots(folder)) {
    if (snapshot.state == SnapshotState::whole) return std::move(snapshot);
  }
  return std::nullopt;
}

// As a later lockstep would write the file, a manifest or a record: in a version of the format that nobody knows yet.
inline void rewrite_as_later(const std::filesystem::path& path, const char* format) {
  write_text(path, seal(unseal(read_text(path), {.name = format}, "it"), {.name = format, .version = 2}));
}

// One start: it goes on from the newest.
class Job {
 public:
  explicit Job(const std::filesystem::path& folder, bool in_shards = false)
      : folder_(folder), in_shards_(in_shards), lock_(folder, kWriter) {
    if (const auto newest = newest_whole(folder)) step_ = newest->step;
    generation_ = newest_generation(folder) + 1;
    record_generation(folder, {.number = generation_,
                               .from_step = step_ > 0 ? std::optional(step_) : std::nullopt,
                               .writer = kWriter,
                               .time = "now"});
  }
  void save() {
    write();
    tidy();
  }
  // Its two halves: once the first returns, the step is durable.
  void write() {
    ++step_;
    in_shards_ ? save_shards({folder_, folder_}, step_, generation_) : save_step(folder_, step_, generation_);
  }
  void tidy() {
    set_value(newest_whole(folder_).value(), 0.5);
    clean(folder_, {.keep = 1});
  }
  std::int64_t step() const { return step_; }

 private:
  std::filesystem::path folder_;
  bool in_shards_ = false;
  SeriesLock lock_;
  std::int64_t step_ = 0;
  std::int64_t generation_ = 0;
};

}  // namespace lockstep::checkpoint
