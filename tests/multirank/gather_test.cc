// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/gather.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"
#include "lockstep/nn/nn.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "lockstep/train/weights.h"
#include "tests/multirank/compare.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::gather_test {
namespace {

TEST(GatherRows, IsTheOppositeOfChunk) {
  for (const int ranks : {1, 2, 3, 8}) {
    for (const std::int64_t total : {30, 10, 1, 0}) {
      std::vector<float> wanted(static_cast<std::size_t>(total * 2));
      std::iota(wanted.begin(), wanted.end(), 1.0f);
      run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
        const data::RowRange mine = data::chunk(total, group->rank(), group->size());
        const Tensor all = Tensor::of({total, 2}, wanted).to(group->device());
        const int root = group->size() - 1;
        const Tensor gathered = gather_rows(all.view_rows(mine.begin, mine.begin + mine.count), *group, root);
        EXPECT_EQ(all_gather_rows(all.view_rows(mine.begin, mine.begin + mine.count), *group).to_vector(), wanted);
        ASSERT_EQ(gathered.defined(), group->rank() == root);
        if (!gathered.defined()) return;
        EXPECT_EQ(gathered.shape(), (Shape{total, 2}));
        EXPECT_EQ(gathered.to_vector(), wanted) << total << " over " << ranks;
      });
    }
  }
}

TEST(GatherRows, RowsUnlikeEachOtherAreAMismatchOnEveryRank) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const DeviceId device = group->device();
    const auto rows = [&](std::int64_t columns, DType dtype) { return Tensor::zeros({2, columns}, dtype, device); };
    EXPECT_THROW(gather_rows(rows(group->rank() == 1 ? 3 : 2, DType::f32), *group), Mismatch);
    EXPECT_THROW(gather_rows(rows(2, group->rank() == 2 ? DType::i64 : DType::f32), *group), Mismatch);
    EXPECT_THROW(all_gather_rows(rows(group->rank() == 1 ? 3 : 2, DType::f32), *group), Mismatch);
  });
}

TEST(Weights, AreReadByRankZeroAndReachAll) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "w";
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    nn::Linear model(5, 2), fresh(5, 2);
    model.initialize(1);
    model.to(group->device());
    save_weights(file, model, *group, {{"by", std::to_string(group->rank())}});
    EXPECT_TRUE(std::filesystem::exists(file)) << "everyone waited";
    fresh.initialize(10 + static_cast<std::uint64_t>(group->rank()));
    fresh.to(group->device());
    EXPECT_EQ(load_weights(file, fresh, *group).metadata, (checkpoint::Metadata{{"by", "0"}}));
    EXPECT_EQ(hash_of(fresh), hash_of(model));
    const StreamView stream = group->stream();
    // Those of a DistributedDataParallel are its module's.
    fresh.initialize(2);
    DistributedDataParallel ddp(model, group), other(fresh, group);
    EXPECT_TRUE(group->stream() == stream) << "on a device load_weights() read in the stream of the tensors";
    save_weights(folder / "w", ddp, {{"epoch", "3"}});
    EXPECT_EQ(load_weights(folder / "w", other).metadata, (checkpoint::Metadata{{"epoch", "3"}}));
    EXPECT_EQ(hash_of(fresh), hash_of(model));
  });
}

}  // namespace
}  // namespace lockstep::testing::gather_test
