// SPDX-License-Identifier: Apache-2.0
// Ranks that have disks of their own: the newest snapshot that any of them holds is the job's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/multirank/snapshot_program.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/snapshot/job.h"

namespace lockstep::testing::snapshots_disks_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kStep4 = "step-000000000004-g000001";
constexpr const char* kStep8 = "step-000000000008-g000001";

// A job whose steps 4 and 8 are saved, to copy from, and what it comes to undisturbed.
struct Saved {
  explicit Saved(int ranks) : undisturbed(run(ranks, whole / "run", kSteps)) { run(ranks, parts / "run", 9); }
  void give(const fs::path& disk, const char* snapshot) const {
    fs::create_directories(disk);
    fs::copy(parts / "run" / snapshot, disk / snapshot, fs::copy_options::recursive);
    fs::copy(parts / "run" / "generation-000001.json", disk / "generation-000001.json",
             fs::copy_options::skip_existing);
  }
  const TemporaryFolder whole, parts;
  const Outcome undisturbed;
};

void damage(const fs::path& snapshot) {
  std::fstream file(snapshot / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-3, std::ios::end);
  file.put('x');
}

TEST(SnapshotsOfSeveralDisks, TheNewestThatAnyRankHoldsWins) {
  for (const int ranks : {2, 3}) {
    const Saved saved(ranks);
    for (int holder = 0; holder < ranks; ++holder) {
      const TemporaryFolder folder;
      std::vector<fs::path> disks;
      for (int rank = 0; rank < ranks; ++rank) disks.push_back(folder / std::to_string(rank));
      const auto at = [&](int rank) { return disks[static_cast<std::size_t>(rank % ranks)]; };
      saved.give(at(holder), kStep8);
      saved.give(at(holder + 1), kStep4);  // older; with 3 ranks the last one has none
      const Outcome last = run_on(disks, kSteps);
      EXPECT_EQ(last.restored, 8) << ranks << " ranks, held by " << holder;
      EXPECT_EQ(last.weights, saved.undisturbed.weights) << ranks << " ranks, held by " << holder;
      EXPECT_EQ(last.samples, saved.undisturbed.samples);
      EXPECT_EQ(snapshots_in(disks[0]).back(), "step-000000000012-g000002") << "rank 0 writes";
    }
  }
}

TEST(SnapshotsOfSeveralDisks, ADamagedOneIsPassedOverForAnothersWholeOne) {
  const Saved saved(3);
  for (int holder = 0; holder < 3; ++holder) {
    const TemporaryFolder folder;
    const std::vector<fs::path> disks{folder / "0", folder / "1", folder / "2"};
    const auto at = [&](int rank) { return disks[static_cast<std::size_t>(rank % 3)]; };
    saved.give(at(holder), kStep8);
    damage(at(holder) / kStep8);
    saved.give(at(holder + 1), kStep4);
    const Outcome last = run_on(disks, kSteps);
    EXPECT_EQ(last.restored, 4) << holder;
    EXPECT_EQ(last.weights, saved.undisturbed.weights) << holder;
  }
  // The same step whole on another disk.
  const TemporaryFolder folder;
  saved.give(folder / "0", kStep8);
  saved.give(folder / "2", kStep8);
  damage(folder / "0" / kStep8);
  EXPECT_EQ(run_on({folder / "0", folder / "1", folder / "2"}, 9).restored, 8);
}

TEST(SnapshotsOfSeveralDisks, ADiskThatWasAwayBringsNothingBackThatTheJobHasLeft) {
  const Saved saved(2);
  const TemporaryFolder folder;
  saved.give(folder / "away", kStep8);
  saved.give(folder / "0", kStep4);
  // Without that disk the job goes on from step 4, and is at step 5.
  EXPECT_EQ(run_on({folder / "0", folder / "1"}, 5).restored, 4);
  EXPECT_EQ(run_on({folder / "0", folder / "away"}, 6).restored, 4) << "step 8 is of another history";
  EXPECT_EQ(run_on({folder / "0", folder / "away"}, kSteps).restored, 4);
}

TEST(SnapshotsOfSeveralDisks, WhatASurvivorHasSavedGoesOnceANewerOneIsThere) {
  const Saved saved(2);
  const TemporaryFolder folder;
  const std::vector<fs::path> disks{folder / "0", folder / "1"};
  EXPECT_ANY_THROW(run_ranks(2, [&](const Group& group) {
    Program it(group, disks[static_cast<std::size_t>(group->rank())], {.every = 4, .rescue = group->rank() == 1});
    it.snapshots.restore();
    it.train(6);
    group->barrier().wait();
    if (group->rank() == 0) throw std::runtime_error("this rank dies");
    it.train(kSteps);
  }));
  const std::string rescued = "step-000000000006-g000001-r1";
  EXPECT_THAT(snapshots_in(disks[1]), ElementsAre(rescued, "step-000000000006-g000001.rescue"));
  EXPECT_EQ(run_on(disks, 10).restored, 6);
  EXPECT_THAT(snapshots_in(disks[1]), ElementsAre(rescued)) << "the job has gone on from it";
  const Outcome last = run_on(disks, kSteps);
  EXPECT_EQ(last.restored, 8);
  EXPECT_THAT(snapshots_in(disks[1]), IsEmpty());
  EXPECT_EQ(last.weights, saved.undisturbed.weights);
}

// Whoever has it: a rank that goes on from an older one would have the job do the later lockstep's steps again.
TEST(SnapshotsOfSeveralDisks, TheNewestOfALaterLockstepIsNotPassedOver) {
  const Saved saved(2);
  for (int holder = 0; holder < 2; ++holder) {
    const TemporaryFolder folder;
    const std::vector<fs::path> disks{folder / "0", folder / "1"};
    const auto at = [&](int rank) { return disks[static_cast<std::size_t>(rank % 2)]; };
    saved.give(at(holder), kStep8);
    checkpoint::rewrite_as_later(at(holder) / kStep8 / "manifest.json", "lockstep snapshot");
    saved.give(at(holder + 1), kStep4);
    run_ranks(2, [&](const Group& group) {
      Program it(group, at(group->rank()), {});
      expect_text(error_of([&] { it.snapshots.restore(); }),
                  {"Snapshots::restore: on rank " + std::to_string(holder), kStep8, "format 2; this one reads up to 1",
                   "update lockstep", "to resume from an older one"});
    });
    EXPECT_FALSE(fs::exists(disks[0] / "generation-000002.json")) << "nothing was begun";
    // As it says.
    fs::rename(at(holder) / kStep8, folder / "away");
    EXPECT_EQ(run_on(disks, kSteps).restored, 4);
  }
}

TEST(SnapshotsOfSeveralDisks, AnOlderOneOfALaterLockstepIsInNobodysWayAndStays) {
  const Saved saved(2);
  const TemporaryFolder folder;
  saved.give(folder / "run", kStep4);
  saved.give(folder / "run", kStep8);
  checkpoint::rewrite_as_later(folder / "run" / kStep4 / "manifest.json", "lockstep snapshot");
  const Outcome last = run(2, folder / "run", kSteps, {.every = 1, .keep = 1});
  EXPECT_EQ(last.restored, 8);
  EXPECT_EQ(last.weights, saved.undisturbed.weights);
  EXPECT_THAT(snapshots_in(folder / "run"), ElementsAre(kStep4, "step-000000000014-g000002"));
}

TEST(SnapshotsOfSeveralDisks, ARecordOfALaterLockstepIsAStartThatIsNotPassedOver) {
  const Saved saved(2);
  const TemporaryFolder folder;
  saved.give(folder / "0", kStep8);
  checkpoint::record_generation(folder / "0", {.number = 2, .from_step = 8, .writer = "rank 0", .time = "now"});
  checkpoint::rewrite_as_later(folder / "0" / "generation-000002.json", "lockstep generation");
  run_ranks(2, [&](const Group& group) {
    Program it(group, folder / std::to_string(group->rank()), {});
    expect_text(error_of([&] { it.snapshots.restore(); }), {"generation-000002.json", "update lockstep"});
  });
}

TEST(SnapshotsOfSeveralDisks, NothingIsMadeOnDisksThatHaveNone) {
  const TemporaryFolder folder;
  run_on({folder / "0", folder / "1"}, 5);
  EXPECT_THAT(snapshots_in(folder / "0"), ElementsAre(kStep4));
  EXPECT_FALSE(fs::exists(folder / "1"));
}

TEST(Snapshots, OneThatMayNotBeReadIsAnErrorAndNoFreshStart) {
  const TemporaryFolder folder;
  fs::permissions(folder, fs::perms(0755));
  run(1, folder / "run", 5);
  for (const auto& entry : fs::recursive_directory_iterator(folder.string())) {
    fs::permissions(entry.path(), fs::perms(entry.is_directory() ? 0777 : 0666));
  }
  fs::permissions(folder / "run/step-000000000004-g000001/model.safetensors", fs::perms::none);
  fs::permissions(folder / "run", fs::perms(0777));
  Child child([&](const Line&) {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) return 2;
    const std::string error = error_of([&] { run(2, folder / "run", kSteps); });
    EXPECT_THAT(error,
                AllOf(HasSubstr("Snapshots::restore"), HasSubstr("model.safetensors"), HasSubstr("Permission denied")));
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_FALSE(fs::exists(folder / "run/generation-000002.json"));
}

}  // namespace
}  // namespace lockstep::testing::snapshots_disks_test
