// SPDX-License-Identifier: Apache-2.0
// Snapshots on a disk that is full of the job's own older ones, and on one that does not say how full it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>

#include "lockstep/base/error.h"
#include "tests/multirank/snapshot_program.h"
#include "tests/support/child.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::snapshots_room_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

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
constexpr const char* kThreeAreTheMost = "size=48k";

TEST(SnapshotsRoom, OlderOnesMakeRoomWhileTheJobRuns) {
  const TemporaryFolder folder;
  with_disk(folder, "tmpfs", kThreeAreTheMost, [&] {
    run(1, folder / "run", kSteps, {.every = 2, .keep = 4});
    const auto names = snapshots_in(folder / "run");
    EXPECT_THAT(names, Contains("step-000000000014-g000001"));
    EXPECT_LE(names.size(), 3u);
  });
}

TEST(SnapshotsRoom, OlderOnesMakeRoomForAStartAndTheNewestStays) {
  const TemporaryFolder folder;
  with_disk(folder, "tmpfs", "size=64k", [&] {
    run(1, folder / "run", 9, {.every = 2});
    ASSERT_EQ(snapshots_in(folder / "run").size(), 3u);
    fill(folder / "of somebody else");
    const Outcome last = run(1, folder / "run", kSteps, {.every = 2});
    EXPECT_EQ(last.restored, 8);
    EXPECT_THAT(snapshots_in(folder / "run"), Contains("step-000000000014-g000002"));
    EXPECT_EQ(run(1, folder / "run", kSteps, {.every = 2}).restored, 14);
  });
}

// The newest that can be read is not among what makes room, though a damaged one is newer.
TEST(SnapshotsRoom, WhatTheJobResumesFromStaysBesideADamagedOne) {
  const TemporaryFolder folder;
  with_disk(folder, "tmpfs", "size=64k", [&] {
    run(1, folder / "run", 9, {.every = 2});
    std::fstream damaged(folder / "run/step-000000000008-g000001/model.safetensors",
                         std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(-3, std::ios::end);
    damaged.put('x').flush();
    fill(folder / "of somebody else");
    EXPECT_EQ(run(1, folder / "run", 8, {.every = 0}).restored, 6);
    EXPECT_EQ(run(1, folder / "run", kSteps, {.every = 2}).restored, 6);
  });
}

TEST(SnapshotsRoom, WhatTheProgramWantsToKeepDoesNotGo) {
  const TemporaryFolder folder;
  with_disk(folder, "tmpfs", kThreeAreTheMost, [&] {
    run(1, folder / "run", kSteps, {.every = 2, .keep = 1, .keep_every = 4});
    EXPECT_THAT(snapshots_in(folder / "run"), Contains("step-000000000004-g000001"));
    EXPECT_THAT(snapshots_in(folder / "run"), Contains("step-000000000008-g000001"));
  });
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
}  // namespace lockstep::testing::snapshots_room_test
