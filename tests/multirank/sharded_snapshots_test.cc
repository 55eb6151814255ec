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

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr Shard kSharded = Shard::optimizer;
constexpr const char* kStep4 = "step-000000000004-g000001";
constexpr const char* kStep8 = "step-000000000008-g000001";
const SnapshotOptions kEvery4{.every = 4};

std::vector<fs::path> disks_in(const TemporaryFolder& folder, int ranks) {
  std::vector<fs::path> disks;
  for (int rank = 0; rank < ranks; ++rank) disks.push_back(folder / std::to_string(rank));
  return disks;
}

std::vector<std::string> files_in(const fs::path& snapshot) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(snapshot)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// What a job of `ranks` comes to that stopped behind step 9, and resumed from step 8.
struct Saved {
  explicit Saved(int ranks) : undisturbed(run(ranks, folder / "undisturbed", kSteps)) {
    run(ranks, folder / "whole", 9);
    run(ranks, folder / "shards", 9, kEvery4, kSharded);
  }
  fs::path copy(const char* from, const std::string& to) const {
    fs::copy(folder / from, folder / to, fs::copy_options::recursive);
    return folder / to;
  }
  const TemporaryFolder folder;
  const Outcome undisturbed;
};

TEST(SnapshotsInShards, AnyNumberOfRanksResumesFromThoseOfAnyWithShardsOrWithout) {
  for (int writers = 1; writers <= 4; ++writers) {
    const Saved saved(writers);
    if (writers > 1) {
      EXPECT_THAT(files_in(saved.folder / "shards" / kStep8), ::testing::Contains("optimizer.r0001.safetensors"));
      EXPECT_THAT(files_in(saved.folder / "shards" / kStep8), Not(::testing::Contains("optimizer.safetensors")));
    }
    for (int readers = 1; readers <= 4; ++readers) {
      const std::string name = std::to_string(readers);
      const Outcome wanted = run(readers, saved.copy("whole", "wanted" + name), kSteps);
      if (readers == writers) {
        EXPECT_EQ(wanted.weights, saved.undisturbed.weights);
      }
      for (const auto& [from, shard] :
           {std::pair{"shards", kSharded}, std::pair{"shards", Shard::none}, std::pair{"whole", kSharded}}) {
        const bool is_sharded = shard == kSharded;
        const fs::path folder = saved.copy(from, from + name + (is_sharded ? "s" : "w"));
        const Outcome last = run(readers, folder, kSteps, kEvery4, shard);
        EXPECT_EQ(last.restored, 8);
        EXPECT_EQ(last.weights, wanted.weights) << from << " of " << writers << " read by " << readers << is_sharded;
        EXPECT_EQ(last.samples, wanted.samples);
      }
    }
  }
}

TEST(SnapshotsInShards, EachDiskHasWhatItsRanksWroteAndTheManifest) {
  for (const int ranks : {2, 3}) {
    const Saved saved(ranks);
    const TemporaryFolder folder;
    const std::vector<fs::path> disks = disks_in(folder, ranks);
    const SnapshotOptions options{.every = 4, .keep = 1};
    run_on(disks, 9, options, kSharded);
    EXPECT_THAT(files_in(disks[0] / kStep8),
                ElementsAre("manifest.json", "model.safetensors", "optimizer.r0000.safetensors"));
    EXPECT_THAT(files_in(disks[1] / kStep8), ElementsAre("manifest.json", "optimizer.r0001.safetensors"));
    for (const fs::path& disk : disks) EXPECT_THAT(snapshots_in(disk), ElementsAre(kStep8));
    EXPECT_EQ(checkpoint::list_snapshots(disks[1]).at(0).state, checkpoint::SnapshotState::partial);
    // A disk whose rank did not learn in time that rank 0 wrote the manifest has the files alone.
    fs::remove(disks[1] / kStep8 / "manifest.json");
    const Outcome last = run_on(disks, kSteps, options, kSharded);
    EXPECT_EQ(last.restored, 8);
    EXPECT_EQ(last.weights, saved.undisturbed.weights);
    for (const fs::path& disk : disks) EXPECT_THAT(snapshots_in(disk), ElementsAre("step-000000000012-g000002"));
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
  const Outcome last = run_on({folder / "b", folder / "b", folder / "a", folder / "a"}, kSteps, kEvery4, kSharded);
  EXPECT_EQ(last.restored, 8);
  EXPECT_EQ(last.weights, saved.undisturbed.weights);
}

TEST(SnapshotsInShards, AShareThatIsMissingOrDamagedCostsThatSnapshotAlone) {
  const Saved saved(3);
  const auto damage = [](const fs::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  };
  const fs::path missing = saved.copy("shards", "missing"), damaged = saved.copy("shards", "damaged");
  fs::remove(missing / kStep8 / "optimizer.r0002.safetensors");
  damage(damaged / kStep8 / "optimizer.r0002.safetensors");
  for (const fs::path& folder : {missing, damaged}) {
    const Outcome last = run(3, folder, kSteps, kEvery4, kSharded);
    EXPECT_EQ(last.restored, 4) << folder;
    EXPECT_EQ(last.weights, saved.undisturbed.weights) << folder;
  }
  const fs::path alone = saved.copy("shards", "alone");
  fs::remove_all(alone / kStep4);
  fs::remove(alone / kStep8 / "optimizer.r0001.safetensors");
  EXPECT_THAT(error_of([&] { run(3, alone, kSteps, kEvery4, kSharded); }),
              AllOf(HasSubstr("and none that is whole"), HasSubstr("alone")));
  EXPECT_TRUE(fs::exists(alone / kStep8)) << "to be mended";
}

// Fails each file of that name below a folder while `fails`, for a scope, with `error`; counts them.
class FailingFile {
 public:
  FailingFile(const std::atomic<bool>& fails, int error, std::atomic<int>& failed, const fs::path& folder,
              const char* name = "optimizer.r0001.safetensors") {
    checkpoint::set_storage_observer([&, error, folder, name](const checkpoint::StorageOperation& operation) {
      if (!fails || operation.to.filename() != name || !operation.to.string().starts_with(folder.string())) return;
      ++failed;
      throw SystemError("writing the shard of rank 1: write", error);
    });
  }
  ~FailingFile() { checkpoint::set_storage_observer(nullptr); }
  FailingFile(const FailingFile&) = delete;
  FailingFile& operator=(const FailingFile&) = delete;
};

TEST(SnapshotsInShards, ARankThatCanNotWriteCostsSnapshotsAndNoTraining) {
  const Saved saved(3);
  for (const bool is_shared : {true, false}) {
    const TemporaryFolder folder;
    const auto disks = is_shared ? std::vector<fs::path>(3, folder / "run") : disks_in(folder, 3);
    std::atomic<bool> fails = false;
    std::atomic<int> failed = 0;
    const FailingFile failing(fails, EIO, failed, folder / "");
    Values weights;
    ::testing::internal::CaptureStderr();
    run_ranks(3, [&](const Group& group) {
      Program it(group, disks[static_cast<std::size_t>(group->rank())], {.every = 4}, kSharded);
      it.snapshots.restore();
      it.behind_step = [&](std::int64_t step) {
        group->barrier().wait();
        if (step == 5) fails = true;
        if (step == 9) {
          EXPECT_THAT(
              error_of<Error>([&] { it.snapshots.save(); }),
              AllOf(HasSubstr("rank 1 ("), HasSubstr("writing the shard of rank 1: write: Input/output error")));
          group->barrier().wait();
          fails = false;
        }
      };
      it.train(kSteps);
      if (group->rank() == 0) weights = weights_of(it.model);
    });
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, AllOf(HasSubstr("step 8 was not saved, and the run continues: rank 1 ("),
                           HasSubstr("writing the shard of rank 1"), HasSubstr("step 12 is saved in")));
    EXPECT_EQ(failed, 2);
    EXPECT_EQ(weights, saved.undisturbed.weights);
    for (const fs::path& disk : disks) {
      EXPECT_THAT(snapshots_in(disk), ElementsAre(kStep4, "step-000000000012-g000001"));
    }
  }
}

TEST(SnapshotsInShards, OnAFullDiskOlderOnesGoAndNotWhatOtherRanksWrite) {
  const TemporaryFolder folder;
  std::atomic<bool> fails = false;
  std::atomic<int> failed = 0;
  const FailingFile failing(fails, ENOSPC, failed, folder / "");
  run_ranks(2, [&](const Group& group) {
    Program it(group, folder / "run", {.every = 2}, kSharded);
    it.snapshots.restore();
    it.train(7);
    group->barrier().wait();
    fails = true;
    it.train(9);
    group->barrier().wait();
    fails = false;
    it.train(10);
  });
  EXPECT_EQ(failed, 4) << "three to be removed, one by one";
  EXPECT_THAT(snapshots_in(folder / "run"), ElementsAre("step-000000000006-g000001", "step-000000000010-g000001"))
      << "the newest stayed";
  EXPECT_EQ(run(2, folder / "run", kSteps, {.every = 2}, kSharded).restored, 10);
}

// Rank 0's manifest makes them a snapshot, wherever it lies.
TEST(SnapshotsInShards, ADiskThatTakesNoCopyOfTheManifestKeepsTheSharesOfTheNewestAndNoMore) {
  for (const int error : {ENOSPC, EIO}) {
    const Saved saved(2);
    const TemporaryFolder folder;
    const std::vector<fs::path> disks = disks_in(folder, 2);
    const SnapshotOptions options{.every = 2, .keep = 2};
    {
      const std::atomic<bool> fails = true;
      std::atomic<int> failed = 0;
      const FailingFile failing(fails, error, failed, disks[1], "manifest.json");
      run_on(disks, 9, options, kSharded);
      EXPECT_GT(failed, 3);
    }
    const auto newest = ElementsAre("step-000000000006-g000001", kStep8);
    EXPECT_THAT(snapshots_in(disks[0]), newest);
    EXPECT_THAT(snapshots_in(disks[1]), newest);
    const Outcome last = run_on(disks, kSteps, options, kSharded);
    EXPECT_EQ(last.restored, 8);
    EXPECT_EQ(last.weights, saved.undisturbed.weights);
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
    const std::atomic<bool> fails = true;
    std::atomic<int> failed = 0;
    const FailingFile failing(fails, ENOSPC, failed, folder / "");
    EXPECT_EQ(run_on(disks, 9, options, kSharded).restored, 4);
    EXPECT_EQ(failed, 2) << "once more with what could be removed";
    EXPECT_THAT(files_in(disks[1] / kStep4), ElementsAre("optimizer.r0001.safetensors"));
  }
  EXPECT_EQ(run_on(disks, kSteps, options, kSharded).weights, saved.undisturbed.weights);
  for (const fs::path& disk : disks) EXPECT_THAT(snapshots_in(disk), ElementsAre("step-000000000012-g000004"));
}

TEST(SnapshotsInShards, ADiskThatIsFullAtAStartCostsSnapshotsUntilItHasRoom) {
  const Saved saved(2);
  const TemporaryFolder folder;
  const std::vector<fs::path> disks = disks_in(folder, 2);
  run_on(disks, 5, kEvery4, kSharded);
  std::atomic<bool> fails = true;
  std::atomic<int> failed = 0;
  const FailingFile failing(fails, ENOSPC, failed, disks[1], "generation-000002.json");
  Values weights;
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](const Group& group) {
    Program it(group, disks[static_cast<std::size_t>(group->rank())], kEvery4, kSharded);
    EXPECT_EQ(it.snapshots.restore()->step, 4);
    it.behind_step = [&](std::int64_t step) {
      group->barrier().wait();
      if (step == 9) fails = false;
    };
    it.train(kSteps);
    if (group->rank() == 0) weights = weights_of(it.model);
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, AllOf(HasSubstr("no step is saved until its disk has room"), HasSubstr("step 8 was not saved"),
                         HasSubstr("step 12 is saved in")));
  EXPECT_EQ(weights, saved.undisturbed.weights);
  for (const fs::path& disk : disks) EXPECT_THAT(snapshots_in(disk), ElementsAre(kStep4, "step-000000000012-g000002"));
}

TEST(SnapshotsInShards, ADamagedCopyOfTheManifestIsNoWorseThanNone) {
  const Saved saved(3);
  const TemporaryFolder folder;
  const std::vector<fs::path> disks = disks_in(folder, 3);
  const SnapshotOptions options{.every = 4, .keep = 1};
  run_on(disks, 9, options, kSharded);
  for (const int disk : {0, 1}) {  // and one that is good is enough
    std::ofstream(disks[static_cast<std::size_t>(disk)] / kStep8 / "manifest.json", std::ios::app) << "x";
    const fs::path copy = folder / ("copy" + std::to_string(disk));
    std::vector<fs::path> copies;
    for (const fs::path& from : disks) {
      fs::create_directories(copy);
      fs::copy(from, copies.emplace_back(copy / from.filename()), fs::copy_options::recursive);
    }
    const Outcome last = run_on(copies, kSteps, options, kSharded);
    EXPECT_EQ(last.restored, 8);
    EXPECT_EQ(last.weights, saved.undisturbed.weights);
  }
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
    const fs::path folder = saved.copy("shards", "absent " + host);
    set_host(folder / kStep8, host);
    const fs::path file = folder / kStep8 / "optimizer.r0001.safetensors", away = saved.folder / ("away " + host);
    fs::rename(file, away);
    EXPECT_THAT(
        error_of([&] { run(2, folder, kSteps, kEvery4, kSharded); }),
        AllOf(HasSubstr("nothing is damaged, but step 8 is not whole"), HasSubstr("optimizer.r0001.safetensors"),
              HasSubstr(host), HasSubstr("resume from step 4"), HasSubstr("do 4 steps again")));
    fs::rename(away, file);
    const Outcome last = run(3, folder, kSteps, kEvery4, kSharded);
    EXPECT_EQ(last.restored, 8);
    EXPECT_EQ(last.weights, saved.undisturbed.weights);
  }
}

TEST(SnapshotsInShards, ADeadRankCostsTheStepsSinceTheLastSave) {
  for (int dead = 0; dead < 3; ++dead) {
    const Saved saved(3);
    const TemporaryFolder folder;
    ::testing::internal::CaptureStderr();
    EXPECT_ANY_THROW(run_ranks(3, [&](const Group& group) {
      Program it(group, folder / "run", {.every = 4, .rescue = group->rank() != dead}, kSharded);
      it.snapshots.restore();
      it.train(6);
      group->barrier().wait();
      if (group->rank() == dead) throw std::runtime_error("this rank dies");
      it.train(kSteps);
    }));
    EXPECT_THAT(
        ::testing::internal::GetCapturedStderr(),
        AllOf(HasSubstr("step 6, the last that rank "),
              HasSubstr("'optimizer' is split over the ranks, and a survivor has only its own shard; the job resumes "
                        "from step 4, and does 2 again")));
    EXPECT_THAT(snapshots_in(folder / "run"), ElementsAre(kStep4));
    const Outcome last = run(3, folder / "run", kSteps, kEvery4, kSharded);
    EXPECT_EQ(last.restored, 4);
    EXPECT_EQ(last.weights, saved.undisturbed.weights);
  }
}

// The others' copies end with their next backward, which needs the rank that has ended.
TEST(SnapshotsInShards, ARankThatThrowsWhileOneIsWrittenDoesNotWaitForTheOthers) {
  for (const bool is_shared : {true, false}) {
    for (int thrower = 0; thrower < 3; ++thrower) {
      const TemporaryFolder folder;
      const auto disks = is_shared ? std::vector<fs::path>(3, folder / "run") : disks_in(folder, 3);
      // A rank that waits until the group's timeout is ended by the limit.
      EXPECT_ANY_THROW(run_ranks(3,
                                 [&](const Group& group) {
                                   Program it(group, disks[static_cast<std::size_t>(group->rank())], {.every = 4},
                                              kSharded);
                                   it.waits = false;
                                   it.snapshots.restore();
                                   it.train(4);
                                   if (group->rank() == thrower) throw std::runtime_error("this rank ends");
                                   it.train(kSteps);
                                 },
                                 {.timeout = std::chrono::hours(1)}));
      const auto restored = run_on(disks, kSteps, kEvery4, kSharded).restored;
      EXPECT_TRUE(!restored || restored == 4) << "whole or not there";
    }
  }
}

// The others' copies end with their next backward here, too.
TEST(SnapshotsInShards, ARankThatReturnsOrSavesAloneWhileOneIsWrittenIsNamedBeforeTheTimeout) {
  for (const bool saves : {false, true}) {
    for (int leaver = 0; leaver < 3; ++leaver) {
      const TemporaryFolder folder;
      const std::string error = error_of<Error>([&] {
        run_ranks(3,
                  [&](const Group& group) {
                    Program it(group, folder / "run", {.every = 4}, kSharded);
                    it.waits = false;
                    it.snapshots.restore();
                    it.train(4);
                    if (group->rank() != leaver) return it.train(kSteps);
                    if (saves) it.snapshots.save();
                  },
                  {.timeout = std::chrono::hours(1)});
      });
      EXPECT_THAT(error, HasSubstr("barrier")) << saves << leaver;
      const auto restored = run(3, folder / "run", kSteps, kEvery4, kSharded).restored;
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
      run_ranks(3, [&](const Group& group) {
        Program it(group, disks[static_cast<std::size_t>(group->rank())], {.every = 4}, kSharded);
        it.snapshots.restore();
        it.behind_step = [&](std::int64_t step) {
          if (step != saved_at - (is_in_evaluation ? 0 : 1)) return;
          if (group->rank() == 1) request_stop(*group, "enough");
          group->barrier().wait();
        };
        it.train(saved_at);
        EXPECT_EQ(should_stop(*group, StopView::all_ranks), "enough");
      });
      const Outcome last = run_on(disks, kSteps, kEvery4, kSharded);
      EXPECT_EQ(last.restored, saved_at) << is_in_evaluation;
      EXPECT_EQ(last.weights, saved.undisturbed.weights);
    }
  }
}

TEST(SnapshotsInShards, TheBestsModelIsLoaded) {
  const TemporaryFolder folder;
  const std::vector<fs::path> disks = disks_in(folder, 3);
  std::vector<Values> best(3), loaded(3);
  run_ranks(3, [&](const Group& group) {
    const auto rank = static_cast<std::size_t>(group->rank());
    Program it(group, disks[rank], {.keep = 1, .keep_best = 1}, kSharded);
    it.snapshots.restore();
    for (const double value : {3.0, 1.0, 2.0}) {
      it.train(it.ddp.steps() + 1);
      if (it.snapshots.save_if_best(value)) best[rank] = weights_of(it.model);
    }
    it.train(5);
    const auto found = it.snapshots.load_best_model();
    if (!found) throw InvalidArgument("there is none");
    EXPECT_EQ(found->step, 2);
    loaded[rank] = weights_of(it.model);
  });
  EXPECT_EQ(loaded, best);
  EXPECT_EQ(run_on(disks, 6, kEvery4, kSharded).restored, 5);
}

TEST(SnapshotsInShards, ARankWhoseFolderCanNotBeMadeIsNamedBeforeTheFirstStep) {
  const TemporaryFolder folder;
  folder.write("file", "text");
  const std::string error = error_of([&] {
    run_on({folder / "run", folder / "file" / "run"}, kSteps, kEvery4, kSharded);
  });
  EXPECT_THAT(error, AllOf(HasSubstr("Snapshots::restore: on rank 1"), HasSubstr("file")));
}

}  // namespace
}  // namespace lockstep::testing::sharded_snapshots_test
