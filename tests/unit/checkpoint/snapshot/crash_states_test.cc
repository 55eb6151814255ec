// SPDX-License-Identifier: Apache-2.0
// Every state in which a loss of power or a kill can leave the folder: what was durable is found, nothing torn is taken
// for whole, and the next run tidies up.
//
// A bound that is not the model's own: all bytes that are not synced share one fate (whole, half, none or zeros).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/child.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/snapshot/disk_model.h"
#include "tests/unit/checkpoint/snapshot/job.h"

namespace lockstep::checkpoint::crash_states_test {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::Child, lockstep::testing::kSanitized, lockstep::testing::TemporaryFolder;

// Calls `heard` before each operation, for a scope.
class Observed {
 public:
  explicit Observed(StorageObserver heard) { set_storage_observer(std::move(heard)); }
  ~Observed() { set_storage_observer(nullptr); }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;
};

// Runs a body in a real folder, and says what it has done to the disk before each of its operations, and at its end.
class Recording {
 public:
  // `root`: of the disk; its content is `before`'s.
  Recording(const fs::path& root, DiskModel before, bool in_shards = false)
      : root_(root), model_(std::move(before)), in_shards_(in_shards) {}

  struct Moment {
    DiskModel disk;
    std::int64_t durable = 0;  // the newest step that a save has returned for
  };
  // Records one start with `saves` saves. The moments of before each operation, and the end.
  std::vector<Moment> run(int saves, std::int64_t durable_before = 0) {
    std::vector<Moment> moments;
    std::int64_t durable = durable_before;
    const Observed observed([&](const StorageOperation& operation) {
      moments.push_back({model_, durable});
      model_.apply(operation);
    });
    Job job(root_ / "disk/run", in_shards_);
    for (int i = 0; i < saves; ++i) {
      job.write();
      durable = job.step();
      job.tidy();
    }
    moments.push_back({model_, durable});
    return moments;
  }

 private:
  fs::path root_;
  DiskModel model_;
  bool in_shards_ = false;
};

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
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    ASSERT_TRUE(name == "lock" || name.starts_with("step-") ||
                (name.starts_with("generation-") && name.ends_with(".json")))
        << name;
  }
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(found[0].path)) files.insert(entry.path().filename().string());
  std::set<std::string> wanted{"manifest.json", "model.safetensors", "optimizer.safetensors"};
  if (in_shards)
    wanted = {"manifest.json", "model.safetensors", "optimizer.r0000.safetensors", "optimizer.r0001.safetensors"};
  ASSERT_EQ(files, wanted);
}

// In memory where there is such a place: thousands of small folders are made, and each is synced.
class CrashStates : public ::testing::Test {
 protected:
  CrashStates() {
    const char* const memory = "/dev/shm";
    if (::access(memory, W_OK) == 0) {
      place_ = fs::path(memory) / ("lockstep-crash-" + std::to_string(::getpid()));
    } else {
      place_ = folder_ / "states";
    }
  }
  ~CrashStates() override { fs::remove_all(place_); }

  // Each state of each moment once, with the newest step that must be in it.
  std::map<DiskState, std::int64_t> states_of(const std::vector<Recording::Moment>& moments) {
    std::map<DiskState, std::int64_t> states;
    for (const Recording::Moment& moment : moments) {
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

TEST_F(CrashStates, ALossOfPowerAtAnyMomentLosesNothingThatWasDurable) {
  fs::create_directories(place_ / "job/disk");
  // The first save into a folder that is not there, and later ones, each of which removes the one before.
  const auto moments = Recording(place_ / "job", DiskModel(place_ / "job")).run(3);
  const auto states = states_of(moments);
  RecordProperty("moments", static_cast<int>(moments.size()));
  RecordProperty("states", static_cast<int>(states.size()));
  ASSERT_GT(moments.size(), 60u);
  ASSERT_GT(states.size(), 100u);
  check(states, true);
}

TEST_F(CrashStates, ALossOfPowerLosesNothingThatWasDurableInSharesOfTwoRanks) {
  fs::create_directories(place_ / "job/disk");
  const auto moments = Recording(place_ / "job", DiskModel(place_ / "job"), true).run(2);
  const auto states = states_of(moments);
  RecordProperty("states", static_cast<int>(states.size()));
  ASSERT_GT(states.size(), 100u);
  check(states, true, true);
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
  fs::create_directories(place_ / "job/disk");
  std::vector<Recording::Moment> moments;
  DiskModel model(place_ / "job");
  std::int64_t durable = 0;
  {
    const Observed observed([&](const StorageOperation& operation) {
      moments.push_back({model, durable});
      model.apply(operation);
    });
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
    moments.push_back({model, durable});
  }
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
  fs::create_directories(place_ / "job/disk");
  const auto kills = Recording(place_ / "job", DiskModel(place_ / "job")).run(2);
  std::size_t states = 0;
  std::map<DiskState, std::int64_t> seen;
  for (std::size_t i = 0; i < kills.size(); i += kSanitized ? 7 : 1) {
    const Recording::Moment& kill = kills[i];
    materialise(kill.disk.live(), place_ / "job");
    std::map<DiskState, std::int64_t> after;
    for (const auto& [state, durable] : states_of(Recording(place_ / "job", kill.disk).run(1, kill.durable))) {
      const auto [it, is_new] = seen.emplace(state, durable);
      if (!is_new && it->second >= durable) continue;
      it->second = durable;
      after.emplace(state, durable);
    }
    states += after.size();
    ASSERT_NO_FATAL_FAILURE(check(after, false));
  }
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, kSanitized ? 100u : 1000u);
}

TEST_F(CrashStates, AProcessKilledBeforeAnyOperationLeavesWhatTheNextGoesOnFrom) {
  int killed_at = 0;
  for (bool is_done = false; !is_done; killed_at += kSanitized ? 7 : 1) {
    const fs::path disk = place_ / "killed";
    fs::remove_all(disk);
    Child child([&](const lockstep::testing::Line& line) {
      int operations = 0;
      const Observed observed([&](const StorageOperation&) {
        if (operations++ == killed_at) ::_exit(3);
      });
      for (int starts = 0; starts < 2; ++starts) {
        Job job(disk / "run");
        for (int saves = 0; saves < 2; ++saves) {
          job.write();
          line.tell(job.step());
          job.tidy();
        }
      }
      return 0;
    });
    const int status = child.wait();
    ASSERT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3)) << status;
    is_done = WEXITSTATUS(status) == 0;
    std::int64_t durable = 0;
    for (std::int64_t step = 0; child.line().hear(step);) durable = step;
    ASSERT_NO_FATAL_FAILURE(expect_consistent(disk / "run", durable)) << killed_at;
    ASSERT_NO_FATAL_FAILURE(expect_next_run_tidies_up(disk / "run")) << killed_at;
  }
  EXPECT_GT(killed_at, 80);
}

// The model knows a mistake when it sees one.
TEST_F(CrashStates, AManifestThatIsWrittenFirstIsFound) {
  fs::create_directories(place_ / "job/disk");
  DiskModel disk(place_ / "job");
  const fs::path folder = place_ / "job/disk/run";
  std::vector<StorageOperation> operations;
  std::vector<std::string> bytes;  // of the operations
  bytes.reserve(1000);
  {
    const Observed observed([&](const StorageOperation& operation) {
      operations.push_back(operation);
      bytes.emplace_back(reinterpret_cast<const char*>(operation.bytes.data()), operation.bytes.size());
      operations.back().bytes = std::as_bytes(std::span(bytes.back()));
    });
    Job(folder).save();
  }
  const auto torn_states = [&](const std::function<bool(const StorageOperation&)>& is_left_out) {
    std::vector<Recording::Moment> moments;
    DiskModel model(disk);
    for (const StorageOperation& operation : operations) {
      if (is_left_out(operation)) continue;
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
  EXPECT_GT(torn_states([](const StorageOperation& it) { return it.kind == Kind::sync_folder; }), 0);
  EXPECT_GT(torn_states([&](const StorageOperation& it) { return it.kind == Kind::sync_folder && it.path == folder; }),
            0);
}

}  // namespace
}  // namespace lockstep::checkpoint::crash_states_test
