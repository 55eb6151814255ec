// SPDX-License-Identifier: Apache-2.0
// What a job meets on its way: a full disk, a folder that it may not write, no descriptors, a folder that has gone.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_to.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/snapshot/job.h"

namespace lockstep::checkpoint::faults_test {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::Child, lockstep::testing::errno_of, lockstep::testing::error_of,
    lockstep::testing::expect_text, lockstep::testing::LimitedTo, lockstep::testing::TemporaryFolder;
using ::testing::ElementsAre;

constexpr std::size_t kLarge = 100'000;  // elements of each of two tensors

std::vector<std::string> names_of(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Runs it in another process, and fails as it does. `body` tells what went wrong by its texts, in order.
void expect_in_child(const std::function<void()>& body) {
  Child child([&](const lockstep::testing::Line&) {
    body();
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  const int status = child.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "in the child, see above";
}

// Root may write anywhere; nobody else may.
void become_a_user() {
  constexpr uid_t kNobody = 65534;
  if (::geteuid() != 0) return;
  ASSERT_EQ(::setresgid(kNobody, kNobody, kNobody), 0);
  ASSERT_EQ(::setresuid(kNobody, kNobody, kNobody), 0);
}

void expect_only_step_1(const fs::path& folder) {
  EXPECT_THAT(names_of(folder), ElementsAre("generation-000001.json", "lock", "step-000000000001-g000001"));
  expect_step(newest_whole(folder).value());
}

// Where `limit` leaves room for small steps alone: a large one fails with `error_number` and leaves nothing, and the
// next small one is saved.
void expect_full_disk(const fs::path& folder, int error_number,
                      const std::function<void(std::function<void()>)>& limit) {
  Job job(folder);
  job.save();
  limit([&] { EXPECT_EQ(errno_of([&] { save_step(folder, 2, 1, kLarge); }), error_number); });
  expect_only_step_1(folder);
  limit([&] { EXPECT_NO_THROW(save_step(folder, 3, 1)); });
  expect_step(newest_whole(folder).value());
  EXPECT_EQ(newest_whole(folder)->step, 3);
}

TEST(SnapshotFaults, AFileThatMayNotGrowFailsTheSaveAndLeavesNothing) {
  const TemporaryFolder folder;
  expect_full_disk(folder / "run", EFBIG, [](const std::function<void()>& body) {
    const LimitedTo size(RLIMIT_FSIZE, 64 << 10);
    body();
  });
}

TEST(SnapshotFaults, AFullDiskFailsTheSaveAndLeavesNothing) {
  const TemporaryFolder folder;
  expect_in_child([&] {
    // A small disk of this process's own; whoever may not make one has the test before, which takes the same way.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder.c_str(), "tmpfs", 0, "size=256k") != 0) {
      ASSERT_TRUE(errno == EPERM || errno == EACCES || errno == EINVAL) << errno;
      return;
    }
    expect_full_disk(folder / "run", ENOSPC, [](const std::function<void()>& body) { body(); });
  });
}

TEST(SnapshotFaults, AFolderThatCanNotBeWrittenIsSaidBeforeAnythingElse) {
  const TemporaryFolder folder;
  fs::permissions(folder, fs::perms(0755));
  fs::create_directory(folder / "run");
  fs::permissions(folder / "run", fs::perms(0555));
  expect_in_child([&] {
    become_a_user();
    constexpr const char* kRemedy = ", as which this process runs, the right to it, or name another folder";
    expect_text(error_of<SystemError>([&] { SeriesLock(folder / "run", "me"); }),
                {"snapshots: opening '", "run/lock'", "Permission denied", kRemedy});
    expect_text(error_of<SystemError>([&] { SeriesLock(folder / "other", "me"); }),
                {"making the folder '", "other'", "Permission denied", kRemedy});
    expect_text(error_of<SystemError>([&] { record_generation(folder / "run", {.number = 1}); }),
                {"writing '", "generation-000001.json", "Permission denied", kRemedy});
  });
  fs::permissions(folder / "run", fs::perms(0755));
}

TEST(SnapshotFaults, ASnapshotThatMayNotBeReadIsNotCalledDamaged) {
  const TemporaryFolder folder;
  fs::permissions(folder, fs::perms(0755));
  { Job(folder / "run").save(); }
  const fs::path snapshot = newest_whole(folder / "run")->path;
  for (const char* name : {"", "manifest.json", "model.safetensors"}) {
    const fs::perms before = fs::status(snapshot / name).permissions();
    fs::permissions(snapshot / name, fs::perms::none);
    expect_in_child([&] {
      become_a_user();
      expect_text(error_of<SystemError>([&] {
                    for (const FoundSnapshot& found : list_snapshots(folder / "run")) verify_snapshot(found);
                  }),
                  {"step-000000000001-g000001", "Permission denied", "the right to it"});
    });
    fs::permissions(snapshot / name, before);
  }
}

TEST(SnapshotFaults, WithoutDescriptorsNothingIsLostOrCalledDamaged) {
  const TemporaryFolder folder;
  Job job(folder / "run");
  job.save();
  const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(lowest);
  bool has_failed = false, has_saved = false;
  for (int more = 0; !has_saved; ++more) {
    try {
      const LimitedTo descriptors(RLIMIT_NOFILE, static_cast<rlim_t>(lowest + more));
      try {
        for (const FoundSnapshot& found : list_snapshots(folder / "run")) {
          EXPECT_NE(found.state, SnapshotState::damaged) << more << ": " << found.why_not;
          if (found.step == 1) verify_snapshot(found);
        }
      } catch (const SystemError& error) {
        EXPECT_EQ(error.error_number(), EMFILE) << error.what();
        has_failed = true;
      }
      save_step(folder / "run", 2, 1);
      has_saved = true;
    } catch (const SystemError& error) {
      EXPECT_EQ(error.error_number(), EMFILE) << error.what();
      expect_text(error.what(), {"Too many open files", "ulimit -n", "; raise the limit"});
    }
    ASSERT_LT(more, 20);
    ASSERT_EQ(newest_whole(folder / "run")->step, has_saved ? 2 : 1) << more;
    expect_step(newest_whole(folder / "run").value());
  }
  EXPECT_TRUE(has_failed);
}

TEST(SnapshotFaults, AFolderThatHasGoneIsNotMadeAnew) {
  const TemporaryFolder folder;
  Job job(folder / "run");
  job.save();
  fs::rename(folder / "run", folder / "moved");
  for (int tries = 0; tries < 2; ++tries) {
    expect_text(error_of([&] { save_step(folder / "run", 2, 1); }),
                {"step 2 is not saved", "generation 1, is gone from", "put it back"});
  }
  EXPECT_FALSE(fs::exists(folder / "run"));
  fs::rename(folder / "moved", folder / "run");
  save_step(folder / "run", 3, 1);
  EXPECT_EQ(newest_whole(folder / "run")->step, 3);
}

TEST(SnapshotFaults, FilesAreAsTheUsersUmaskSays) {
  for (const mode_t mask : {022u, 027u, 077u, 002u}) {
    const TemporaryFolder folder;
    const mode_t before = ::umask(mask);
    { Job(folder / "above/run").save(); }
    ::umask(before);
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      struct stat status {};
      ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 07777u, (entry.is_directory() ? 0777u : 0666u) & ~mask) << entry.path();
      EXPECT_EQ(status.st_uid, ::geteuid());
    }
  }
}

}  // namespace
}  // namespace lockstep::checkpoint::faults_test
