// SPDX-License-Identifier: Apache-2.0
// Every state in which a loss of power can leave the folder: what was durable is found, nothing torn is taken for
// whole, and the next run tidies up. And what a job meets on its way: a full disk, a folder that it may not write, no
// descriptors, a folder that has gone.
//
// A bound that is not the model's own: all bytes that are not synced share one fate (whole, half, none or zeros).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_to.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/snapshot/disk_model.h"
#include "tests/unit/checkpoint/snapshot/job.h"

namespace lockstep::checkpoint::crash_states_test {
namespace {

using lockstep::testing::Child, lockstep::testing::errno_of, lockstep::testing::error_of,
    lockstep::testing::expect_text, lockstep::testing::kSanitized, lockstep::testing::LimitedTo,
    lockstep::testing::TemporaryFolder;
using ::testing::ElementsAre;

namespace fs = std::filesystem;

// Calls `heard` before each operation, for a scope.
class Observed {
 public:
  explicit Observed(StorageObserver heard) { set_storage_observer(std::move(heard)); }
  ~Observed() { set_storage_observer(nullptr); }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;
};

struct Moment {
  DiskModel disk;
  std::int64_t durable = 0;  // the newest step that a save has returned for
};
// Runs `body`, which counts what is durable, in a real folder whose content is the disk's. Returns what it has done to
// the disk before each of its operations, and at its end.
std::vector<Moment> moments_of(DiskModel disk, std::int64_t durable,
                               const std::function<void(std::int64_t& durable)>& body) {
  std::vector<Moment> moments;
  const Observed observed([&](const StorageOperation& operation) {
    moments.push_back({disk, durable});
    disk.apply(operation);
  });
  body(durable);
  moments.push_back({disk, durable});
  return moments;
}

// One start with `saves` saves.
std::function<void(std::int64_t&)> start_in(const fs::path& root, int saves, bool in_shards = false) {
  return [=](std::int64_t& durable) {
    Job job(root / "disk/run", in_shards);
    for (int i = 0; i < saves; ++i) {
      job.write();
      durable = job.step();
      job.tidy();
    }
  };
}

std::string describe_state(const DiskState& state) {
  std::string text;
  for (const auto& [name, bytes] : state) text += name + " (" + std::to_string(bytes.size()) + ") ";
  return text;
}

// What a run finds that starts in this folder after a crash: at least `durable`, nothing torn.
void expect_consistent(const fs::path& folder, std::int64_t durable) {
  std::int64_t newest = 0;
  for (const FoundSnapshot& snapshot : list_snapshots(folder)) {
    ASSERT_NE(snapshot.state, SnapshotState::partial) << snapshot.path << ": " << snapshot.why_not;
    ASSERT_NE(snapshot.state, SnapshotState::damaged) << snapshot.path << ": " << snapshot.why_not;
    if (snapshot.state != SnapshotState::whole) continue;
    newest = std::max(newest, snapshot.step);
    ASSERT_NO_FATAL_FAILURE(expect_step(snapshot));
  }
  ASSERT_GE(newest, durable);
}

// The next start goes on, saves, and leaves nothing but what is its own.
void expect_next_run_tidies_up(const fs::path& folder, bool in_shards = false) {
  const auto before = newest_whole(folder);
  Job job(folder, in_shards);
  ASSERT_EQ(job.step(), before ? before->step : 0);
  job.save();
  const auto found = list_snapshots(folder);
  ASSERT_EQ(found.size(), 1u);
  ASSERT_EQ(found[0].step, job.step());
  ASSERT_NO_FATAL_FAILURE(expect_step(found[0]));
  std::set<std::string> rest, wanted{"manifest.json", "model.safetensors"};
  for (const auto& entry : fs::directory_iterator(folder)) rest.insert(entry.path().filename().string());
  std::erase_if(rest, [](const std::string& name) {
    return name == "lock" || name.starts_with("step-") || (name.starts_with("generation-") && name.ends_with(".json"));
  });
  ASSERT_EQ(rest, std::set<std::string>());
  for (const auto& entry : fs::directory_iterator(found[0].path)) rest.insert(entry.path().filename().string());
  if (in_shards) {
    wanted.insert({"optimizer.r0000.safetensors", "optimizer.r0001.safetensors"});
  } else {
    wanted.insert("optimizer.safetensors");
  }
  ASSERT_EQ(rest, wanted);
}

// In memory where there is such a place: thousands of small folders are made, and each is synced.
class CrashStates : public ::testing::Test {
 protected:
  CrashStates() {
    const bool has_memory = ::access("/dev/shm", W_OK) == 0;
    place_ = has_memory ? fs::path("/dev/shm/crash-states-" + std::to_string(::getpid())) : folder_ / "states";
    fs::create_directories(place_ / "job/disk");
  }
  ~CrashStates() override { fs::remove_all(place_); }

  // Each state of each moment once, with the newest step that must be in it.
  std::map<DiskState, std::int64_t> states_of(const std::vector<Moment>& moments) {
    std::map<DiskState, std::int64_t> states;
    for (const Moment& moment : moments) {
      moment.disk.each_crash_state([&](const DiskState& state) {
        auto& durable = states[state];
        durable = std::max(durable, moment.durable);
      });
    }
    return states;
  }
  void check(const std::map<DiskState, std::int64_t>& states, bool goes_on, bool in_shards = false) {
    for (const auto& [state, durable] : states) {
      materialise(state, place_ / "state");
      const fs::path folder = place_ / "state/disk/run";
      ASSERT_NO_FATAL_FAILURE(expect_consistent(folder, durable)) << describe_state(state);
      if (!goes_on) continue;
      ASSERT_NO_FATAL_FAILURE(expect_next_run_tidies_up(folder, in_shards)) << describe_state(state);
    }
  }

  TemporaryFolder folder_;
  fs::path place_;
};

// The first save into a folder that is not there, and later ones, each of which removes the one before; whole ones, and
// shares of two ranks.
TEST_F(CrashStates, ALossOfPowerAtAnyMomentLosesNothingThatWasDurable) {
  for (const bool in_shards : {false, true}) {
    const fs::path job = place_ / (in_shards ? "shards" : "job");
    fs::create_directories(job / "disk");
    const auto moments = moments_of(DiskModel(job), 0, start_in(job, in_shards ? 2 : 3, in_shards));
    const auto states = states_of(moments);
    ASSERT_GT(states.size(), 100u);
    check(states, true, in_shards);
  }
}

// The newest step of which each file is whole on one of the disks, and the manifest too.
std::int64_t newest_of_disks(const std::array<fs::path, 2>& disks) {
  std::int64_t newest = 0;
  for (const fs::path& disk : disks) {
    for (const FoundSnapshot& snapshot : list_snapshots(disk)) {
      EXPECT_NE(snapshot.state, SnapshotState::damaged) << snapshot.path << ": " << snapshot.why_not;
      if (!snapshot.is_saved()) continue;
      const auto is_whole = [&](const ManifestFile& file) {
        return std::any_of(disks.begin(), disks.end(), [&](const fs::path& other) {
          const fs::path folder = other / snapshot.path.filename();
          if (!fs::exists(folder / file.name)) return false;
          EXPECT_NO_THROW(verify_file({.path = folder, .manifest = snapshot.manifest}, file));
          return true;
        });
      };
      const auto& files = snapshot.manifest->files;
      if (std::all_of(files.begin(), files.end(), is_whole)) newest = std::max(newest, snapshot.step);
    }
  }
  return newest;
}

// Each rank writes to its own disk; the older step goes from one before the other has the manifest.
TEST_F(CrashStates, ALossOfPowerOfTwoHostsLosesNothingThatWasDurable) {
  const auto moments = moments_of(DiskModel(place_ / "job"), 0, [&](std::int64_t& durable) {
    const std::array<fs::path, 2> disks{place_ / "job/disk/one", place_ / "job/disk/two"};
    for (const fs::path& disk : disks) {
      make_folders(disk);
      record_generation(disk, {.number = 1, .writer = kWriter, .time = "now"});
    }
    for (std::int64_t step = 1; step <= 2; ++step) {
      const Manifest manifest = save_shards(disks, step, 1, false);
      durable = step;
      clean(disks[0], {.keep = 1});
      finish_snapshot(disks[1] / name_of_snapshot(step, 1), manifest);
      clean(disks[1], {.keep = 1});
    }
  });
  const auto states = states_of(moments);
  ASSERT_GT(states.size(), 100u);
  for (const auto& [state, step] : states) {
    materialise(state, place_ / "state");
    ASSERT_GE(newest_of_disks({place_ / "state/disk/one", place_ / "state/disk/two"}), step) << describe_state(state);
  }
}

TEST_F(CrashStates, ALossOfPowerAfterARestartOverTheRemainsOfAKilledRunLosesNothing) {
  // The processes before were killed at some moment, and what they did is seen, but not durable; a new one starts over
  // that, and then the power goes.
  const auto kills = moments_of(DiskModel(place_ / "job"), 0, start_in(place_ / "job", 2));
  std::size_t states = 0;
  std::map<DiskState, std::int64_t> seen;
  for (std::size_t i = 0; i < kills.size(); i += kSanitized ? 7 : 1) {
    const Moment& kill = kills[i];
    materialise(kill.disk.live(), place_ / "job");
    std::map<DiskState, std::int64_t> after;
    const auto moments = moments_of(kill.disk, kill.durable, start_in(place_ / "job", 1));
    for (const auto& [state, durable] : states_of(moments)) {
      const auto [it, is_new] = seen.emplace(state, durable);
      if (!is_new && it->second >= durable) continue;
      it->second = durable;
      after.emplace(state, durable);
    }
    states += after.size();
    ASSERT_NO_FATAL_FAILURE(check(after, false));
  }
  EXPECT_GT(states, kSanitized ? 100u : 1000u);
}

// The model knows a mistake when it sees one.
TEST_F(CrashStates, AMissingSyncIsFound) {
  const fs::path folder = place_ / "job/disk/run";
  const DiskModel disk(place_ / "job");
  std::vector<std::pair<StorageOperation, std::string>> operations;  // with bytes of their own
  {
    const Observed observed([&](const StorageOperation& operation) {
      operations.emplace_back(
          operation, std::string(reinterpret_cast<const char*>(operation.bytes.data()), operation.bytes.size()));
    });
    Job(folder).save();
  }
  const auto torn_states = [&](const std::function<bool(const StorageOperation&)>& is_left_out) {
    std::vector<Moment> moments;
    DiskModel model = disk;
    for (auto& [operation, bytes] : operations) {
      if (is_left_out(operation)) continue;
      operation.bytes = std::as_bytes(std::span(bytes));
      model.apply(operation);
      moments.push_back({model, 0});
    }
    moments.back().durable = 1;
    int torn = 0;
    for (const auto& [state, durable] : states_of(moments)) {
      materialise(state, place_ / "state");
      std::int64_t newest = 0;
      for (const FoundSnapshot& snapshot : list_snapshots(place_ / "state/disk/run")) {
        torn += snapshot.state == SnapshotState::damaged ? 1 : 0;
        if (snapshot.state != SnapshotState::whole) continue;
        try {
          verify_snapshot(snapshot);
          newest = snapshot.step;
        } catch (const CorruptData&) {
          ++torn;
        }
      }
      torn += newest < durable ? 1 : 0;
    }
    return torn;
  };
  using Kind = StorageOperation::Kind;
  EXPECT_EQ(torn_states([](const StorageOperation&) { return false; }), 0);
  EXPECT_GT(torn_states([](const StorageOperation& it) { return it.kind == Kind::sync_file; }), 0);
  EXPECT_GT(torn_states([&](const StorageOperation& it) { return it.kind == Kind::sync_folder && it.path == folder; }),
            0);
}

constexpr std::size_t kLarge = 100'000;  // elements of each of two tensors

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

// A full disk takes the same way.
TEST(SnapshotFaults, AFileThatMayNotGrowFailsTheSaveAndLeavesNothing) {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  Job job(run);
  job.save();
  {
    const LimitedTo size(RLIMIT_FSIZE, 64 << 10);
    EXPECT_EQ(errno_of([&] { save_step(run, 2, 1, kLarge); }), EFBIG);
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(run)) names.insert(entry.path().filename().string());
    EXPECT_THAT(names, ElementsAre("generation-000001.json", "lock", "step-000000000001-g000001"));
    expect_step(newest_whole(run).value());
    EXPECT_NO_THROW(save_step(run, 3, 1));
  }
  expect_step(newest_whole(run).value());
  EXPECT_EQ(newest_whole(run)->step, 3);
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
  int reads = 0, saves = 0;  // that failed
  for (bool has_saved = false; !has_saved;) {
    ASSERT_LT(saves, 20);
    const auto has_descriptors = [&](const std::function<void()>& call) {
      const LimitedTo descriptors(RLIMIT_NOFILE, static_cast<rlim_t>(lowest + saves));
      try {
        call();
        return true;
      } catch (const SystemError& error) {
        EXPECT_EQ(error.error_number(), EMFILE) << error.what();
        expect_text(error.what(), {"Too many open files", "ulimit -n", "; raise the limit"});
        return false;
      }
    };
    reads += !has_descriptors([&] {
      for (const FoundSnapshot& found : list_snapshots(folder / "run")) {
        EXPECT_NE(found.state, SnapshotState::damaged) << saves << ": " << found.why_not;
        if (found.step == 1) verify_snapshot(found);
      }
    });
    has_saved = has_descriptors([&] { save_step(folder / "run", 2, 1); });
    saves += !has_saved;
    ASSERT_EQ(newest_whole(folder / "run")->step, has_saved ? 2 : 1) << saves;
    expect_step(newest_whole(folder / "run").value());
  }
  EXPECT_GT(reads, 0);
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
}  // namespace lockstep::checkpoint::crash_states_test
