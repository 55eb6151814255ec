// SPDX-License-Identifier: Apache-2.0
// Snapshots of optimizers in shards of the ranks: any number of ranks resumes from them, with shards or without, on
// shared disks or on disks of their own, whatever has failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/stop.h"
#include "runtime/checkpoint/snapshot/manifest.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/checkpoint/storage.h"
#include "tests/multirank/snapshot_program.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::sharded_snapshots_test {
namespace {

using ::testing::ElementsAre;

constexpr Shard kSharded = Shard::optimizer;
const SnapshotOptions kEvery4{.every = 4};
constexpr const char* kStep12 = "step-000000000012-g000001";

std::vector<std::string> files_in(const fs::path& snapshot) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(snapshot)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// What a job of `ranks` comes to that stopped behind step 9, and resumed from step 8.
struct Saved {
  explicit Saved(int ranks) : undisturbed(run(ranks, folder / "undisturbed", kSteps)) {
    run(ranks, folder / "shards", 9, kEvery4, kSharded);
  }
  fs::path copy(const std::string& to) const {
    fs::copy(folder / "shards", folder / to, fs::copy_options::recursive);
    return folder / to;
  }
  // The job resumes from `step` on these disks, and comes to the same.
  void expect_resumed(const std::vector<fs::path>& disks, std::int64_t step,
                      const SnapshotOptions& options = kEvery4) const {
    const Outcome last = run_on(disks, kSteps, options, kSharded);
    EXPECT_EQ(last.restored, step) << disks[0];
    EXPECT_EQ(last.weights, undisturbed.weights) << disks[0];
  }
  const TemporaryFolder folder;
  const Outcome undisturbed;
};

// One good copy of the manifest is enough: a disk whose rank did not learn in time that rank 0 wrote it has none, and
// one that is damaged is no worse.
TEST(SnapshotsInShards, EachDiskHasWhatItsRanksWroteAndTheManifest) {
  enum class Harm { first_damaged, second_damaged, second_missing };
  for (const int ranks : {2, 3}) {
    const Saved saved(ranks);
    for (const Harm harm : {Harm::first_damaged, Harm::second_damaged, Harm::second_missing}) {
      const TemporaryFolder folder;
      const std::vector<fs::path> disks = disks_in(folder, ranks);
      const SnapshotOptions options{.every = 4, .keep = 1};
      run_on(disks, 9, options, kSharded);
      EXPECT_THAT(files_in(disks[0] / kStep8),
                  ElementsAre("manifest.json", "model.safetensors", "optimizer.r0000.safetensors"));
      EXPECT_THAT(files_in(disks[1] / kStep8), ElementsAre("manifest.json", "optimizer.r0001.safetensors"));
      for (const fs::path& disk : disks) EXPECT_THAT(snapshots_in(disk), ElementsAre(kStep8));
      EXPECT_EQ(checkpoint::list_snapshots(disks[1]).at(0).state, checkpoint::SnapshotState::partial);
      const fs::path manifest = disks[harm == Harm::first_damaged ? 0 : 1] / kStep8 / "manifest.json";
      harm == Harm::second_missing ? static_cast<void>(fs::remove(manifest)) : damage(manifest);
      saved.expect_resumed(disks, 8, options);
      if (harm != Harm::second_missing) continue;  // what is damaged stays
      for (const fs::path& disk : disks) EXPECT_THAT(snapshots_in(disk), ElementsAre("step-000000000012-g000002"));
    }
  }
}

TEST(SnapshotsInShards, TwoHostsOfTwoRanksHaveADiskEach) {
  const Saved saved(4);
  const TemporaryFolder folder;
  const std::vector<fs::path> disks{folder / "a", folder / "a", folder / "b", folder / "b"};
  run_on(disks, 9, kEvery4, kSharded);
  EXPECT_THAT(files_in(folder / "b" / kStep8), ElementsAre("manifest.json", "optimizer.r0002.safetensors"))
      << "the last rank's shard is padding alone";
  // The hosts in the other order.
  saved.expect_resumed({folder / "b", folder / "b", folder / "a", folder / "a"}, 8);
}

TEST(SnapshotsInShards, AShareThatIsMissingOrDamagedCostsThatSnapshotAlone) {
  const Saved saved(3);
  const fs::path missing = saved.copy("missing"), damaged = saved.copy("damaged"), alone = saved.copy("alone");
  fs::remove(missing / kStep8 / "optimizer.r0002.safetensors");
  damage(damaged / kStep8 / "optimizer.r0002.safetensors");
  for (const fs::path& folder : {missing, damaged}) saved.expect_resumed(std::vector(3, folder), 4);
  fs::remove_all(alone / kStep4);
  fs::remove(alone / kStep8 / "optimizer.r0001.safetensors");
  expect_text(error_of([&] { run(3, alone, kSteps, kEvery4, kSharded); }), {"and none that is whole", "alone"});
  EXPECT_TRUE(fs::exists(alone / kStep8)) << "to be mended";
}

// Fails each write of a file of that name below a folder, for a scope, with `error`; counts them.
struct FailingFile {
  FailingFile(int error, const fs::path& folder, const char* name = "optimizer.r0001.safetensors", bool from_now = true)
      : fails(from_now) {
    checkpoint::set_storage_observer([this, error, folder, name](const checkpoint::StorageOperation& operation) {
      if (!fails || operation.to.filename() != name || !operation.to.string().starts_with(folder.string())) return;
      ++failed;
      throw SystemError("writing the shard of rank 1: write", error);
    });
  }
  ~FailingFile() { checkpoint::set_storage_observer(nullptr); }
  FailingFile(const FailingFile&) = delete;
  FailingFile& operator=(const FailingFile&) = delete;
  std::atomic<bool> fails;
  std::atomic<int> failed = 0;
};

TEST(SnapshotsInShards, ARankThatCanNotWriteCostsSnapshotsAndNoTraining) {
  const Saved saved(3);
  for (const bool is_shared : {true, false}) {
    const TemporaryFolder folder;
    const auto disks = is_shared ? std::vector<fs::path>(3, folder / "run") : disks_in(folder, 3);
    FailingFile file(EIO, folder, "optimizer.r0001.safetensors", false);
    ::testing::internal::CaptureStderr();
    run_programs(
        disks,
        [&](Program& it) {
          it.behind_step = [&](std::int64_t step) {
            it.group->barrier().wait();
            if (step == 5) file.fails = true;
            if (step != 9) return;
            expect_text(error_of<Error>([&] { it.snapshots.save(); }),
                        {"rank 1 (", "writing the shard of rank 1: write: Input/output error"});
            it.group->barrier().wait();
            file.fails = false;
          };
          it.train(kSteps);
          EXPECT_EQ(weights_of(it.model), saved.undisturbed.weights);
        },
        kEvery4, kSharded);
    expect_text(::testing::internal::GetCapturedStderr(), {"step 8 was not saved, and the run continues: rank 1 (",
                                                           "writing the shard of rank 1", "step 12 is saved in"});
    EXPECT_EQ(file.failed, 2);
    for (const fs::path& disk : disks) EXPECT_THAT(snapshots_in(disk), ElementsAre(kStep4, kStep12));
  }
}

TEST(SnapshotsInShards, OnAFullDiskOlderOnesGoAndNotWhatOtherRanksWrite) {
  const TemporaryFolder folder;
  FailingFile file(ENOSPC, folder, "optimizer.r0001.safetensors", false);
  run_programs(
      std::vector(2, folder / "run"),
      [&](Program& it) {
        it.train(7);
        it.group->barrier().wait();
        file.fails = true;
        it.train(9);
        it.group->barrier().wait();
        file.fails = false;
        it.train(10);
      },
      {.every = 2}, kSharded);
  EXPECT_EQ(file.failed, 4) << "three to be removed, one by one";
  EXPECT_THAT(snapshots_in(folder / "run"), ElementsAre("step-000000000006-g000001", "step-000000000010-g000001"))
      << "the newest stayed";
  EXPECT_EQ(run(2, folder / "run", kSteps, {.every = 2}, kSharded).restored, 10);
}

// Rank 0's manifest makes them a snapshot, wherever it lies.
TEST(SnapshotsInShards, ADiskThatTakesNoCopyOfTheManifestKeepsTheSharesOfTheNewestAndNoMore) {
  const Saved saved(2);
  for (const int error : {ENOSPC, EIO}) {
    const TemporaryFolder folder;
    const std::vector<fs::path> disks = disks_in(folder, 2);
    const SnapshotOptions options{.every = 2, .keep = 2};
    {
      const FailingFile file(error, disks[1], "manifest.json");
      run_on(disks, 9, options, kSharded);
      EXPECT_GT(file.failed, 3);
    }
    for (const fs::path& disk : disks) {
      EXPECT_THAT(snapshots_in(disk), ElementsAre("step-000000000006-g000001", kStep8));
    }
    saved.expect_resumed(disks, 8, options);
  }
}

// Neither what this run has saved nor what it has resumed from makes room, as long as nothing newer is durable.
TEST(SnapshotsInShards, OnAFullDiskAShardOfTheNewestStaysThoughItsManifestLiesElsewhere) {
  const Saved saved(2);
  const TemporaryFolder folder;
  const std::vector<fs::path> disks = disks_in(folder, 2);
  const SnapshotOptions options{.every = 4, .keep = 1};
  run_on(disks, 5, options, kSharded);
  fs::remove(disks[1] / kStep4 / "manifest.json");
  for (int run = 0; run < 2; ++run) {
    const FailingFile file(ENOSPC, folder);
    EXPECT_EQ(run_on(disks, 9, options, kSharded).restored, 4);
    EXPECT_EQ(file.failed, 2) << "once more with what could be removed";
    EXPECT_THAT(files_in(disks[1] / kStep4), ElementsAre("optimizer.r0001.safetensors"));
  }
  saved.expect_resumed(disks, 4, options);
  for (const fs::path& disk : disks) EXPECT_THAT(snapshots_in(disk), ElementsAre("step-000000000012-g000004"));
}

TEST(SnapshotsInShards, ADiskThatIsFullAtAStartCostsSnapshotsUntilItHasRoom) {
  const Saved saved(2);
  const TemporaryFolder folder;
  const std::vector<fs::path> disks = disks_in(folder, 2);
  run_on(disks, 5, kEvery4, kSharded);
  FailingFile file(ENOSPC, disks[1], "generation-000002.json");
  ::testing::internal::CaptureStderr();
  run_programs(
      disks,
      [&](Program& it) {
        EXPECT_EQ(it.restored->step, 4);
        EXPECT_EQ(file.failed, 4) << "again with 3, 2 and 1 snapshots fewer";
        it.behind_step = [&](std::int64_t step) {
          it.group->barrier().wait();
          if (step == 9) file.fails = false;
        };
        it.train(kSteps);
        EXPECT_EQ(weights_of(it.model), saved.undisturbed.weights);
      },
      kEvery4, kSharded);
  expect_text(::testing::internal::GetCapturedStderr(),
              {"no step is saved until its disk has room", "step 8 was not saved", "step 12 is saved in"});
  for (const fs::path& disk : disks) EXPECT_THAT(snapshots_in(disk), ElementsAre(kStep4, "step-000000000012-g000002"));
}

// The manifest as if another host, or an earlier lockstep, had written rank 1's shard.
void set_host(const fs::path& snapshot, const std::string& host) {
  const fs::path path = snapshot / "manifest.json";
  std::ifstream in(path);
  checkpoint::Manifest manifest = checkpoint::manifest_from_text(std::string(std::istreambuf_iterator<char>(in), {}));
  for (checkpoint::ManifestFile& file : manifest.files) {
    if (file.owner == 1) file.host = host;
  }
  std::ofstream(path) << checkpoint::to_text(manifest);
}

TEST(SnapshotsInShards, AFileOfAHostThatIsNotHereIsWaitedForAndNoOlderSnapshotTaken) {
  const Saved saved(3);
  for (const std::string host : {"elsewhere", ""}) {
    const fs::path folder = saved.copy("absent " + host);
    set_host(folder / kStep8, host);
    const fs::path file = folder / kStep8 / "optimizer.r0001.safetensors", away = saved.folder / ("away " + host);
    fs::rename(file, away);
    expect_text(error_of([&] { run(2, folder, kSteps, kEvery4, kSharded); }),
                {"nothing is damaged, but step 8 is not whole", "optimizer.r0001.safetensors", host,
                 "resume from step 4", "do 4 steps again"});
    fs::rename(away, file);
    saved.expect_resumed(std::vector(3, folder), 8);
  }
}

TEST(SnapshotsInShards, ADeadRankCostsTheStepsSinceTheLastSave) {
  const Saved saved(3);
  for (int dead = 0; dead < 3; ++dead) {
    const TemporaryFolder folder;
    const std::vector<fs::path> disks(3, folder / "run");
    ::testing::internal::CaptureStderr();
    run_until_lost(disks, dead, 6, kEvery4, kSharded);
    expect_text(::testing::internal::GetCapturedStderr(),
                {"step 6, the last that rank ",
                 "'optimizer' is split over the ranks, and a survivor has only its own shard; the job resumes from "
                 "step 4, and does 2 again"});
    EXPECT_THAT(snapshots_in(folder / "run"), ElementsAre(kStep4));
    saved.expect_resumed(disks, 4);
  }
}

// The others' copies end with their next backward, which needs the rank that has ended. Who waits until the group's
// timeout is ended by the limit.
TEST(SnapshotsInShards, ARankThatEndsOrSavesAloneWhileOneIsWrittenIsNotWaitedFor) {
  enum class Does { throws_on_a_disk_of_its_own, throws, returns, saves };
  for (const Does does : {Does::throws_on_a_disk_of_its_own, Does::throws, Does::returns, Does::saves}) {
    for (int leaver = 0; leaver < 3; ++leaver) {
      SCOPED_TRACE(std::to_string(leaver) + " does " + std::to_string(static_cast<int>(does)));
      const TemporaryFolder folder;
      const auto disks =
          does == Does::throws_on_a_disk_of_its_own ? disks_in(folder, 3) : std::vector<fs::path>(3, folder / "run");
      const std::string outcome = outcome_of([&] {
        run_programs(disks,
                     [&](Program& it) {
                       it.waits = false;
                       it.train(4);
                       if (it.group->rank() != leaver) return it.train(kSteps);
                       if (does <= Does::throws) throw std::runtime_error("this rank ends");
                       if (does == Does::saves) it.snapshots.save();
                     },
                     kEvery4, kSharded, {.timeout = std::chrono::hours(1)});
      });
      expect_text(outcome, {does <= Does::throws ? "this rank ends" : "barrier"});
      const auto restored = run_on(disks, kSteps, kEvery4, kSharded).restored;
      EXPECT_TRUE(!restored || restored == 4) << "whole or not there";
    }
  }
}

TEST(SnapshotsInShards, AnAgreedStopIsSavedByStepAndBehindAnEvaluation) {
  const Saved saved(3);
  for (const bool is_in_evaluation : {false, true}) {
    for (const int saved_at : {6, 8}) {  // 8 is one that is due anyway
      const TemporaryFolder folder;
      const std::vector<fs::path> disks = disks_in(folder, 3);
      run_programs(
          disks,
          [&](Program& it) {
            it.behind_step = [&](std::int64_t step) {
              if (step != saved_at - (is_in_evaluation ? 0 : 1)) return;
              if (it.group->rank() == 1) request_stop(*it.group, "enough");
              it.group->barrier().wait();
            };
            it.train(saved_at);
            EXPECT_EQ(should_stop(*it.group, StopView::all_ranks), "enough");
          },
          kEvery4, kSharded);
      saved.expect_resumed(disks, saved_at);
    }
  }
}

TEST(SnapshotsInShards, ARankWhoseFolderCanNotBeMadeIsNamedBeforeTheFirstStep) {
  const TemporaryFolder folder;
  folder.write("file", "text");
  expect_text(error_of([&] {
                run_on({folder / "run", folder / "file" / "run"}, kSteps, kEvery4, kSharded);
              }),
              {"Snapshots::restore: on rank 1", "file"});
}

}  // namespace
}  // namespace lockstep::testing::sharded_snapshots_test
