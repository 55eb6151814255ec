// SPDX-License-Identifier: Apache-2.0
// Snapshots and their disks: of ranks that have disks of their own, of which the newest that any of them holds is the
// job's; one that is full of the job's own older ones; and one that does not say how full it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "tests/multirank/snapshot_program.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/snapshot/job.h"

namespace lockstep::testing::snapshots_disks_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

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

TEST(SnapshotsOfSeveralDisks, TheNewestWholeOneThatAnyRankHoldsWins) {
  for (const int ranks : {2, 3}) {
    const Saved saved(ranks);
    for (const bool is_damaged : {false, true}) {
      for (int holder = 0; holder < ranks; ++holder) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, held by " + std::to_string(holder));
        const TemporaryFolder folder;
        const std::vector<fs::path> disks = disks_in(folder, ranks);
        const auto at = [&](int rank) { return disks[static_cast<std::size_t>(rank % ranks)]; };
        saved.give(at(holder), kStep8);
        if (is_damaged) damage(at(holder) / kStep8 / "model.safetensors");
        saved.give(at(holder + 1), kStep4);  // older; with 3 ranks the last one has none
        const Outcome last = run_on(disks, kSteps);
        EXPECT_EQ(last.restored, is_damaged ? 4 : 8);
        EXPECT_EQ(last.weights, saved.undisturbed.weights);
        EXPECT_EQ(last.samples, saved.undisturbed.samples);
        EXPECT_EQ(snapshots_in(disks[0]).back(), "step-000000000012-g000002") << "rank 0 writes";
      }
    }
    // The same step whole on another disk.
    const TemporaryFolder folder;
    const std::vector<fs::path> disks = disks_in(folder, ranks);
    saved.give(disks.front(), kStep8);
    saved.give(disks.back(), kStep8);
    damage(disks.front() / kStep8 / "model.safetensors");
    EXPECT_EQ(run_on(disks, 9).restored, 8);
  }
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
  const std::vector<fs::path> disks = disks_in(folder, 2);
  run_until_lost(disks, 0, 6);
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
    const std::vector<fs::path> disks = disks_in(folder, 2);
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
  // A start of a later lockstep, too.
  const TemporaryFolder folder;
  saved.give(folder / "0", kStep8);
  checkpoint::record_generation(folder / "0", {.number = 2, .from_step = 8, .writer = "rank 0", .time = "now"});
  checkpoint::rewrite_as_later(folder / "0" / "generation-000002.json", "lockstep generation");
  expect_text(error_of([&] { run_on(disks_in(folder, 2), kSteps); }), {"generation-000002.json", "update lockstep"});
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
  fs::permissions(folder / "run" / kStep4 / "model.safetensors", fs::perms::none);
  fs::permissions(folder / "run", fs::perms(0777));
  Child child([&](const Line&) {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) return 2;
    expect_text(error_of([&] { run(2, folder / "run", kSteps); }),
                {"Snapshots::restore", "model.safetensors", "Permission denied"});
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_FALSE(fs::exists(folder / "run/generation-000002.json"));
}

// Runs the body in a process that has `folder` on a disk of its own.
void with_disk(const TemporaryFolder& folder, const char* type, const char* options,
               const std::function<void()>& body) {
  constexpr int kNoDisk = 77;
  Child child([&](const Line&) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder.c_str(), type, 0, options) != 0) {
      return kNoDisk;
    }
    body();
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  const int status = child.wait();
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoDisk) GTEST_SKIP() << "this process may not mount a " << type;
  EXPECT_EQ(status, 0) << "in the child, see above";
}

// Until nothing is left.
void fill(const fs::path& file) {
  std::ofstream out(file, std::ios::binary);
  while (out.put('x').flush()) {
  }
}

// A snapshot takes three pages, and the disk has twelve, two of which the lock and the record take.
TEST(SnapshotsRoom, OlderOnesMakeRoomWhileTheJobRunsButNotWhatTheProgramWantsToKeep) {
  for (const bool wants_every_fourth : {false, true}) {
    const TemporaryFolder folder;
    with_disk(folder, "tmpfs", "size=48k", [&] {
      run(1, folder / "run", kSteps,
          {.every = 2, .keep = wants_every_fourth ? 1 : 4, .keep_every = wants_every_fourth ? 4 : 0});
      const std::vector<std::string> names = snapshots_in(folder / "run");
      using Names = std::vector<std::string>;
      EXPECT_THAT(names, IsSupersetOf(wants_every_fourth ? Names{kStep4, kStep8} : Names{"step-000000000014-g000001"}));
      EXPECT_LE(names.size(), 3u);
    });
  }
}

// The newest that can be read is not among what makes room, though a damaged one is newer.
TEST(SnapshotsRoom, OlderOnesMakeRoomForAStartAndWhatItResumesFromStays) {
  for (const bool is_damaged : {false, true}) {
    const TemporaryFolder folder;
    with_disk(folder, "tmpfs", "size=64k", [&] {
      run(1, folder / "run", 9, {.every = 2});
      ASSERT_EQ(snapshots_in(folder / "run").size(), 3u);
      if (is_damaged) damage(folder / "run" / kStep8 / "model.safetensors");
      fill(folder / "of somebody else");
      const std::int64_t newest = is_damaged ? 6 : 8;
      EXPECT_EQ(run(1, folder / "run", newest, {.every = 0}).restored, newest);
      EXPECT_EQ(run(1, folder / "run", kSteps, {.every = 2}).restored, newest);
      EXPECT_EQ(run(1, folder / "run", kSteps, {.every = 2}).restored, 14);
    });
  }
}

// As FUSE's default has it, statvfs() says 0 of all.
TEST(SnapshotsRoom, ADiskThatDoesNotSayItsSizeIsNotCalledFull) {
  const TemporaryFolder folder;
  with_disk(folder, "ramfs", "", [&] {
    run(1, folder / "run", 9);
    EXPECT_EQ(run(1, folder / "run", kSteps).restored, 8);
  });
}

}  // namespace
}  // namespace lockstep::testing::snapshots_disks_test
