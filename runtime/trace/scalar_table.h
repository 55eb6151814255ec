// SPDX-License-Identifier: Apache-2.0
// A process's scalars by name, over its whole run in bounded memory: words of its trace's file (trace_ring.h), so that
// they outlive the process and another process reads them meanwhile.
//
// A name keeps the newest value of each `stride` steps: of steps 0 to stride - 1, stride to 2 stride - 1, ... The
// stride begins at 1 and doubles when a series has kMostPoints and needs another. Ranks that log a name in the same
// steps therefore keep the same ones, and the steps of a larger stride are among those of a smaller one. The newest
// value is always kept.
//
// Layout, for each of kMostNames series: words 0..7 hold the name, which ends with a 0 (an empty one: the series is
// free); word 8 is odd while the series is written; word 9 is the number of points, which follow as step, value, time.
//
// Threads: any may put, and takes a lock for some words; with kMostPoints points, once in a while, for all of them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/mutex.h"

namespace lockstep::trace {

// Shared between processes, in their byte order.
using Word = std::atomic<std::uint64_t>;
// A text in `count` words, cut where it has no room, and a 0 behind it.
void put_text(Word* words, std::size_t count, std::string_view text);
std::string text_in(const Word* words, std::size_t count);

struct ScalarPoint {
  std::int64_t step = 0;  // steps done, those of earlier runs included
  double value = 0;
  std::int64_t time = 0;  // ns of the rank's steady clock

  bool operator==(const ScalarPoint&) const = default;
};

// A value that the program or the library has logged.
struct Scalar {
  std::string name = {};
  std::int64_t step = 0;
  double value = 0;

  bool operator==(const Scalar&) const = default;
};

// Makes `mean`, of count - 1 values, that of `count`. The mean of equal values is that value, infinity too.
inline void add_to_mean(double& mean, double value, int count) {
  if (value == mean || (std::isinf(mean) && std::isfinite(value))) return;
  mean += value / count - mean / count;                                   // value - mean may be infinite
  if (std::isnan(mean)) mean = std::numeric_limits<double>::quiet_NaN();  // without a sign
}

struct ScalarSeries {
  std::string name = {};
  std::vector<ScalarPoint> points = {};  // as they were logged

  bool operator==(const ScalarSeries&) const = default;
};

class ScalarTable {
 public:
  static constexpr std::size_t kMostNames = 64;
  static constexpr std::size_t kMostNameBytes = 63;
  static constexpr std::size_t kMostPoints = 512;
  static constexpr std::int64_t kMostStep = std::int64_t{1} << 53;
  static constexpr std::size_t kNameWords = 8;
  static constexpr std::size_t kSeriesWords = kNameWords + 2 + 3 * kMostPoints;
  static constexpr std::size_t kWords = kMostNames * kSeriesWords;

  // `words`: kWords of them, all 0, which outlive the table.
  explicit ScalarTable(Word* words) : words_(words) {}

  // False, with nothing kept, if the name is not among kMostNames that are there.
  bool put(std::string_view name, const ScalarPoint& point) EXCLUDES(mutex_);
  // The newest value of each name, the newest first.
  std::vector<Scalar> newest() const EXCLUDES(mutex_);

  // Reads the table while another process may put. Points with a step outside 0 to 2^53 or a time outside 0 to 2^62 are
  // left out. A series that stays half written, since its process was killed or stopped, is cut before the first point
  // whose step is not a later one; its last point may be mixed of two.
  static std::vector<ScalarSeries> read(const Word* words);

 private:
  struct Series {
    std::string name = {};
    int doublings = 0;  // of the stride
    std::size_t points = 0;
    ScalarPoint last = {};

    // Whether one of two values is kept, if they follow each other.
    bool is_one(std::int64_t step, std::int64_t next) const {
      return std::max<std::int64_t>(step, 0) >> doublings == std::max<std::int64_t>(next, 0) >> doublings;
    }
  };

  Word* const words_;
  mutable Mutex mutex_;
  std::array<Series, kMostNames> series_ GUARDED_BY(mutex_) = {};
};

}  // namespace lockstep::trace
