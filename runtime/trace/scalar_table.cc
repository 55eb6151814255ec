// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/scalar_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "runtime/base/printable.h"

namespace lockstep::trace {
namespace {

constexpr std::size_t kPointWords = sizeof(ScalarPoint) / sizeof(Word);
constexpr std::size_t kVersionAt = ScalarTable::kNameWords;
constexpr std::size_t kCountAt = kVersionAt + 1;
constexpr std::size_t kFirstPointAt = kCountAt + 1;
static_assert(kFirstPointAt + kPointWords * ScalarTable::kMostPoints == ScalarTable::kSeriesWords);
// A reader tries again while a series changes, and gives up on one that was left half written. It yields in between:
// the writer may need this core to finish.
constexpr int kMostReads = 10'000;
constexpr int kReadsAtOnce = 500;

// A file may be damaged: who adds such numbers need not look.
constexpr std::int64_t kMostTime = std::int64_t{1} << 62;

using PointWords = std::array<std::uint64_t, kPointWords>;

// Acquire: a writer that has begun since has made the version odd before it stored a word that is loaded here.
ScalarPoint point_in(const Word* series, std::size_t index) {
  PointWords words{};
  for (std::size_t i = 0; i < kPointWords; ++i) {
    words[i] = series[kFirstPointAt + kPointWords * index + i].load(std::memory_order_acquire);
  }
  return std::bit_cast<ScalarPoint>(words);
}

void put_point(Word* series, std::size_t index, const ScalarPoint& point) {
  const auto words = std::bit_cast<PointWords>(point);
  for (std::size_t i = 0; i < kPointWords; ++i) {
    series[kFirstPointAt + kPointWords * index + i].store(words[i], std::memory_order_release);
  }
}

ScalarSeries series_in(const Word* words) {
  ScalarSeries series;
  for (int i = 0; i < kMostReads; ++i) {
    if ((i + 1) % kReadsAtOnce == 0) std::this_thread::yield();
    const std::uint64_t version = words[kVersionAt].load(std::memory_order_acquire);
    series = {.name = text_in(words, ScalarTable::kNameWords)};
    const auto count =
        std::min<std::uint64_t>(words[kCountAt].load(std::memory_order_acquire), ScalarTable::kMostPoints);
    for (std::size_t point = 0; point < count; ++point) series.points.push_back(point_in(words, point));
    if (version % 2 == 0 && words[kVersionAt].load(std::memory_order_relaxed) == version) return series;
  }
  // Points behind those that a writer has moved to the front are old ones.
  const auto old = std::ranges::adjacent_find(series.points, std::ranges::greater_equal(), &ScalarPoint::step);
  if (old != series.points.end()) series.points.erase(old + 1, series.points.end());
  return series;
}

}  // namespace

void put_text(Word* words, std::size_t count, std::string_view text) {
  std::string bytes(text.substr(0, count * sizeof(Word) - 1));
  bytes.resize(count * sizeof(Word));
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * sizeof(word), sizeof(word));
    words[i].store(word, std::memory_order_release);
  }
}

std::string text_in(const Word* words, std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t word = words[i].load(std::memory_order_acquire);
    bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return printable(bytes.substr(0, bytes.find('\0')), bytes.size());
}

bool ScalarTable::put(std::string_view name, const ScalarPoint& point) {
  MutexLock lock(mutex_);
  std::size_t at = 0;
  while (at < kMostNames && series_[at].points > 0 && series_[at].name != name) ++at;
  if (at == kMostNames) return false;
  Series& series = series_[at];
  Word* const words = words_ + at * kSeriesWords;
  if (series.points == 0) {
    series.name = name;
    put_text(words, kNameWords, name);
  }
  words[kVersionAt].fetch_add(1, std::memory_order_relaxed);
  const auto add = [&](const ScalarPoint& next) {
    if (series.points > 0 && series.is_one(series.last.step, next.step)) --series.points;
    put_point(words, series.points++, next);
    series.last = next;
  };
  while (series.points == kMostPoints && !series.is_one(series.last.step, point.step)) {
    ++series.doublings;
    for (std::size_t i = series.points = 0; i < kMostPoints; ++i) add(point_in(words, i));
  }
  add(point);
  words[kCountAt].store(series.points, std::memory_order_release);
  words[kVersionAt].fetch_add(1, std::memory_order_release);
  return true;
}

std::vector<Scalar> ScalarTable::newest() const {
  MutexLock lock(mutex_);
  std::vector<const Series*> series;
  for (const Series& one : series_) {
    if (one.points > 0) series.push_back(&one);
  }
  std::ranges::stable_sort(series, std::greater(), [](const Series* one) { return one->last.time; });
  std::vector<Scalar> newest;
  for (const Series* one : series) newest.push_back({one->name, one->last.step, one->last.value});
  return newest;
}

std::vector<ScalarSeries> ScalarTable::read(const Word* words) {
  std::vector<ScalarSeries> all;
  for (std::size_t i = 0; i < kMostNames; ++i) {
    ScalarSeries series = series_in(words + i * kSeriesWords);
    std::erase_if(series.points, [](const ScalarPoint& point) {
      return point.step < 0 || point.step > ScalarTable::kMostStep || point.time < 0 || point.time > kMostTime;
    });
    if (!series.points.empty()) all.push_back(std::move(series));
  }
  return all;
}

}  // namespace lockstep::trace
