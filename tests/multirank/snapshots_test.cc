// SPDX-License-Identifier: Apache-2.0
// A run that stopped and goes on computes what one that never stopped does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <latch>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/multirank/snapshot_program.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_to.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::snapshots_test {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(Snapshots, WhatGoesOnComputesTheSameBits) {
  for (const int ranks : {1, 2, 3}) {
    const TemporaryFolder whole, parts;
    const Outcome undisturbed = run(ranks, whole / "run", kSteps);
    EXPECT_EQ(undisturbed.restored, std::nullopt);
    EXPECT_EQ(run(ranks, parts / "run", 6).restored, std::nullopt);
    EXPECT_EQ(run(ranks, parts / "run", 11).restored, 4);
    fs::copy(parts / "run", parts / "elsewhere", fs::copy_options::recursive);
    const Outcome last = run(ranks, parts / "run", kSteps), elsewhere = run(4 - ranks, parts / "elsewhere", kSteps);
    EXPECT_EQ(last.restored, 8);
    EXPECT_EQ(last.weights, undisturbed.weights) << ranks;
    EXPECT_EQ(last.samples, undisturbed.samples);
    EXPECT_EQ(elsewhere.samples, undisturbed.samples);
    expect_close(elsewhere.weights, undisturbed.weights, "at another number of ranks");
  }
}

TEST(Snapshots, AreKeptAsTheOptionsSay) {
  const TemporaryFolder folder;
  run(2, folder / "run", 12, {.every = 2, .keep = 2, .keep_every = 6});
  EXPECT_THAT(snapshots_in(folder / "run"),
              ElementsAre("step-000000000006-g000001", "step-000000000010-g000001", "step-000000000012-g000001"));
}

// There the host may have been ahead of the device, and then the last step that was saved counts.
constexpr bool kIsOnGpu = std::string_view(LOCKSTEP_TEST_BACKEND) == "nccl";

TEST(Snapshots, ALostRankCostsNoFinishedStep) {
  const TemporaryFolder whole;
  const Outcome undisturbed = run(3, whole / "run", kSteps);
  for (const int dead : {0, 1, 2}) {
    for (const auto& [rescues, catches] : {std::pair(true, false), {true, true}, {false, false}, {false, true}}) {
      const TemporaryFolder parts;
      const SnapshotOptions options{.every = 4, .rescue = rescues};
      run_until_lost(std::vector(3, parts / "run"), dead, 6, options, Shard::none, catches);
      const Outcome last = run(3, parts / "run", kSteps);
      EXPECT_THAT(last.restored.value_or(0), AnyOf(rescues ? 6 : 4, kIsOnGpu ? 4 : 6)) << dead << catches;
      EXPECT_EQ(last.weights, undisturbed.weights) << dead << catches;
      EXPECT_EQ(last.samples, undisturbed.samples) << dead << catches;
    }
  }
}

// Its sums end with the failure, on a device behind the host's back.
TEST(Snapshots, ADueStepWhoseSumsALostRankHasNotSharedIsNotSaved) {
  const TemporaryFolder folder;
  std::latch ahead(1);
  EXPECT_ANY_THROW(run_ranks(2, [&](const Group& group) {
    nn::Linear model(5, 2);
    model.initialize(1);
    model.to(group->device());
    DistributedDataParallel ddp(model, group);
    optim::SGD optimizer(ddp.parameters(), {.lr = 0.1});
    Snapshots snapshots(folder / "run", ddp, {.every = 2, .rescue = false});
    snapshots.restore();
    const auto step = [&] {
      ddp.backward(mean(ddp(Tensor::full({3, 5}, 1.0f, group->device()))));
      optimizer.step();
      optimizer.zero_grad();
    };
    step();
    snapshots.step();
    if (group->rank() == 1) {
      ahead.wait();
      group->abort("this rank dies");
      throw std::runtime_error("this rank dies");
    }
    if (!kIsOnGpu) ahead.count_down();  // a host on the CPU does not get behind its step
    step();
    if (kIsOnGpu) ahead.count_down();
    snapshots.step();
  }));
  EXPECT_THAT(snapshots_in(folder / "run"), IsEmpty());
}

TEST(Snapshots, ValuesOfEachRankComeBackOrAreSummedDroppedOrRefused) {
  const TemporaryFolder folder;
  std::vector<std::pair<std::int64_t, std::int64_t>> seen;  // tokens and local of each rank
  const auto run_with = [&](int ranks, std::int64_t begin, AtAnotherSize tokens_at) {
    seen.assign(static_cast<std::size_t>(ranks), {});
    run_ranks(ranks, [&](const Group& group) {
      nn::Sequential model = Program::make_model(1, group->device());
      DistributedDataParallel ddp(model, group);
      auto& [tokens, local] = seen[static_cast<std::size_t>(group->rank())] = {begin + group->rank(), -begin};
      Snapshots snapshots(folder / "run", ddp);
      snapshots.add_per_rank("tokens", tokens, tokens_at);
      snapshots.add_per_rank("local", local, AtAnotherSize::drop);
      if (!snapshots.restore()) snapshots.save();
    });
  };
  run_with(3, 10, AtAnotherSize::sum);
  run_with(3, 50, AtAnotherSize::sum);
  EXPECT_THAT(seen, ElementsAre(Pair(10, -10), Pair(11, -10), Pair(12, -10)));
  run_with(2, 50, AtAnotherSize::sum);
  EXPECT_THAT(seen, ElementsAre(Pair(33, -50), Pair(0, -50))) << "local as the program had it";
  expect_text(error_of([&] { run_with(2, 50, AtAnotherSize::refuse); }),
              {"item 'tokens' has one value for each of 3 ranks, and this job has 2"});
}

TEST(Snapshots, WhatTheProgramAndASnapshotDoNotShareIsNamed) {
  const TemporaryFolder folder;
  const auto run_with = [&](bool has_extra, const RestoreOptions& restore) {
    std::optional<std::int64_t> step;
    run_ranks(2, [&](const Group& group) {
      nn::Sequential model = Program::make_model(1, group->device());
      DistributedDataParallel ddp(model, group);
      double extra = 0.5, best = 1;
      Snapshots snapshots(folder / "run", ddp, {.restore = restore});
      snapshots.add(has_extra ? "extra" : "other", extra);
      snapshots.add("best", best);
      const auto restored = snapshots.restore();
      if (restored && group->rank() == 0) step = restored->step;
      if (!restored) snapshots.save();
    });
    return step;
  };
  EXPECT_EQ(run_with(true, {}), std::nullopt);
  EXPECT_EQ(run_with(true, {}), 0);
  expect_text(error_of([&] { run_with(false, {}); }),
              {"it has 'extra', which the program has not added", "it lacks 'other', which the program has added"});
  EXPECT_EQ(run_with(false, {.allow_missing = true, .allow_unexpected = true}), 0);
}

TEST(Snapshots, WhereAllAreDamagedNothingBeginsAnew) {
  const TemporaryFolder folder;
  run(2, folder / "run", 5);
  const fs::path only = folder / "run" / kStep4 / "model.safetensors";
  fs::copy(only, folder / "good");
  const auto expect_refused = [&] {
    expect_text(error_of([&] { run(2, folder / "run", 6); }), {"has 1 damaged snapshot and none that is whole"});
  };
  damage(only);
  expect_refused();
  fs::resize_file(only, fs::file_size(only) - 1);
  expect_refused();
  fs::copy(folder / "good", only, fs::copy_options::overwrite_existing);
  EXPECT_EQ(run(2, folder / "run", 6).restored, 4) << "what is mended is gone on from";
}

// No rank knows which of two unequal replicas is right: a survivor's would be as good as any.
TEST(Snapshots, ReplicasThatAreNotEqualAreNotSavedAfterTheFailure) {
  const TemporaryFolder folder;
  for (const bool is_asked : {false, true}) {
    const fs::path run = folder / (is_asked ? "asked" : "found");
    const std::string text = error_of<Error>([&] {
      run_ranks(2, [&](const Group& group) {
        nn::Sequential model = Program::make_model(1, group->device());
        DistributedDataParallel ddp(model, group);
        optim::SGD optimizer(ddp.parameters(), {.lr = 0.1});
        Snapshots snapshots(run, ddp, {.every = 3});
        snapshots.restore();
        for (int step = 0; step < 6; ++step) {
          const data::Batch batch = dataset().batch(std::vector<std::int64_t>{step, step + 1}).to(group->device());
          ddp.backward(mse_loss(ddp(batch.x, batch.ids), batch.y));
          optimizer.step();
          optimizer.zero_grad();
          if (step == 3 && group->rank() == 1) ddp.parameters()[0].fill(5);
          snapshots.step();
          // On a device a backward finds it some steps later.
          if (step == 3 && (is_asked || group->device() != DeviceId())) ddp.check_replicas();
        }
      });
    });
    expect_text(text, {"the replicas are not equal any more"});
    EXPECT_THAT(snapshots_in(run), ElementsAre("step-000000000003-g000001")) << "step 4 is of one rank";
  }
}

TEST(Snapshots, ASaveOfAStepThatIsBeingWrittenIsLoggedOnce) {
  for (const Shard shard : {Shard::none, Shard::optimizer}) {
    const TemporaryFolder folder;
    ::testing::internal::CaptureStderr();
    run_programs(
        std::vector(2, folder / "run"),
        [&](Program& it) {
          it.waits = false;
          it.train(4);
          it.snapshots.save();
        },
        {.every = 4}, shard);
    const std::string log = ::testing::internal::GetCapturedStderr();
    const auto first = log.find("step 4 is saved in");
    ASSERT_NE(first, log.npos) << log;
    EXPECT_EQ(log.find("step 4 is saved in", first + 1), log.npos) << log;
  }
}

TEST(Snapshots, ASecondJobInTheFolderIsRefused) {
  const TemporaryFolder folder;
  run_programs({folder / "run"}, [&](Program& first) {
    Program second(first.group, folder / "run", {});
    expect_text(error_of([&] { second.snapshots.restore(); }), {"is in use by rank 0"});
  });
}

TEST(Snapshots, AModelOfAnotherSizeIsNamed) {
  const TemporaryFolder folder;
  run(2, folder / "run", 5);
  expect_text(error_of([&] {
                run_ranks(2, [&](const Group& group) {
                  nn::Sequential model{nn::Linear(5, 8), nn::Tanh(), nn::Dropout(0.3f), nn::Linear(8, 2)};
                  model.initialize(1);
                  model.to(group->device());
                  DistributedDataParallel ddp(model, group);
                  Snapshots snapshots(folder / "run", ddp, {.restore = {.allow_unexpected = true}});
                  snapshots.restore();
                });
              }),
              {"does not fit this program", "'0.weight' is F32 [16, 5]", "the program's is F32 [8, 5]"});
}

// So does a folder that has gone.
TEST(Snapshots, AFullDiskCostsSnapshotsAndNoTraining) {
  enum class Harm { none, full, gone };
  Values undisturbed;
  for (const Harm harm : {Harm::none, Harm::full, Harm::gone}) {
    const TemporaryFolder folder;
    run_programs({folder / "run"},
                 [&](Program& it) {
                   it.train(4);
                   if (harm == Harm::gone) fs::rename(folder / "run", folder / "moved");
                   {
                     const LimitedTo size(RLIMIT_FSIZE, harm == Harm::full ? 100 : RLIM_INFINITY);
                     it.train(9);
                   }
                   if (harm == Harm::gone) {
                     EXPECT_FALSE(fs::exists(folder / "run")) << "it would be another folder, without this job's lock";
                     expect_text(error_of([&] { it.snapshots.save(); }), {"is gone from"});
                     fs::rename(folder / "moved", folder / "run");
                   }
                   it.train(10);
                   EXPECT_THAT(
                       snapshots_in(folder / "run"),
                       ElementsAre(harm == Harm::none ? "step-000000000006-g000001" : "step-000000000002-g000001",
                                   harm == Harm::none ? kStep8 : kStep4, "step-000000000010-g000001"));
                   it.train(kSteps);
                   if (harm == Harm::none) undisturbed = weights_of(it.model);
                   EXPECT_EQ(weights_of(it.model), undisturbed);
                 },
                 {.every = 2});
  }
}

}  // namespace
}  // namespace lockstep::testing::snapshots_test
