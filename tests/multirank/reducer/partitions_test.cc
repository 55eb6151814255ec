// SPDX-License-Identifier: Apache-2.0
// A step's gradients are the mean over the global batch, for any partition of it over ranks and micro-batches.
#include "tests/multirank/reducer/partitions.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing::partitions_test {
namespace {

using ReducerPartitions = ReducerSuite;

TEST_P(ReducerPartitions, EqualTheMeanOfTheGlobalBatch) {
  run([ranks = GetParam()](const Group& group) {
    const std::uint64_t seeds = group->device().kind == DeviceKind::cpu && !kSanitized ? 30 : 6;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const Partition partition(ranks, seed);
      train(group, partition, partition.options, [&](std::size_t step, std::size_t p, const std::vector<float>& seen) {
        partition.expect_mean(step, p, seen);
      });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerPartitions, ::testing::Values(1, 2, 3, 4, 8));

}  // namespace
}  // namespace lockstep::testing::partitions_test
