// SPDX-License-Identifier: Apache-2.0
// A job of one rank as its snapshots' files see it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/snapshot/files.h"
#include "runtime/checkpoint/snapshot/generations.h"
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

// That it is whole, and has what save_step() wrote.
inline void expect_step(const FoundSnapshot& snapshot) {
  ASSERT_NO_THROW(verify_snapshot(snapshot)) << snapshot.path;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const SafetensorsFile file(snapshot.path / name);
    std::vector<float> numbers(file.find("w").bytes / sizeof(float));
    file.read(file.find("w"), std::as_writable_bytes(std::span(numbers)));
    for (const float number : numbers) ASSERT_EQ(number, static_cast<float>(snapshot.step)) << snapshot.path;
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
  explicit Job(const std::filesystem::path& folder) : folder_(folder), lock_(folder, kWriter) {
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
  void write() { save_step(folder_, ++step_, generation_); }
  void tidy() {
    set_value(newest_whole(folder_).value(), 0.5);
    clean(folder_, {.keep = 1});
  }
  std::int64_t step() const { return step_; }
  std::int64_t generation() const { return generation_; }

 private:
  std::filesystem::path folder_;
  SeriesLock lock_;
  std::int64_t step_ = 0;
  std::int64_t generation_ = 0;
};

}  // namespace lockstep::checkpoint
