// SPDX-License-Identifier: Apache-2.0
// Memory of the user's own, which passes through the ranks' windows: sizes around what a slot and a whole window hold,
// wherever in memory. Ranks as threads.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "runtime/comm/shm/control.h"
#include "tests/conformance/suite.h"
#include "tests/support/rank_threads.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing::windows_test {
namespace {

// Elements of a part around each boundary: the smallest slots, the largest, the window; for operations with one part
// and for those with a part for each rank.
std::vector<std::int64_t> counts_around_boundaries(int ranks, std::size_t element_bytes) {
  std::vector<std::size_t> boundaries = {4096, 8192, shm::kLargestWindow / 4};
  // Behind it the dtype makes no difference any more.
  if (element_bytes == 4) boundaries.push_back(shm::kLargestWindow);
  std::set<std::int64_t> counts;
  for (const std::size_t bytes : boundaries) {
    for (const int parts : {1, ranks}) {
      const auto count = static_cast<std::int64_t>(bytes / element_bytes) / parts;
      counts.insert({count - 1, count, count + 1});
    }
  }
  return {counts.begin(), counts.end()};
}

// Eight ranks do nothing that four don't, and four take minutes under a sanitizer.
TEST(Windows, PassOnWhatHasAnySizeAndAddress) {
  for (const auto& [ranks, dtype] :
       {std::pair(1, DType::f32), {2, DType::f32}, {2, DType::u8}, {3, DType::bf16}, {3, DType::u8}, {4, DType::f32}}) {
    if (kSanitized && ranks > 3) continue;
    const auto counts = counts_around_boundaries(ranks, size_of(dtype));
    run_ranks(ranks, [&, of_type = dtype](const std::shared_ptr<ProcessGroup>& group) {
      // Another address on each rank.
      check_counts(*group, of_type, counts, 1 + static_cast<std::size_t>(group->rank()) * 3);
    });
  }
}

// What follows each other in the stream through the windows, in slots of many sizes, and is there at once.
TEST(WindowSlots, TakeCollectivesOfAllSizesInTurns) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [](const std::shared_ptr<ProcessGroup>& group) {
      const int size = group->size();
      std::vector<std::vector<float>> buffers;
      std::vector<Work> works;
      for (int round = 0; round < 60; ++round) {
        const std::size_t bytes = std::size_t{3000} << (round * 5 % 11);
        buffers.emplace_back(bytes / sizeof(float), static_cast<float>(group->rank() + round));
        works.push_back(group->all_reduce(BufferView(std::span(buffers.back()))));
      }
      for (std::size_t round = 0; round < buffers.size(); ++round) {
        works[round].wait();
        const auto wanted = static_cast<float>(size * static_cast<int>(round) + size * (size - 1) / 2);
        for (const float x : buffers[round]) ASSERT_EQ(x, wanted);
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::testing::windows_test
