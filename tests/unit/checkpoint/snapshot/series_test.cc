// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/rescue_claim.h"
#include "runtime/checkpoint/snapshot/retention.h"
#include "runtime/checkpoint/snapshot/series_lock.h"
#include "runtime/checkpoint/storage.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/forbidden_calls.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/snapshot/job.h"

namespace lockstep::checkpoint::series_test {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::Child, lockstep::testing::error_of, lockstep::testing::expect_text,
    lockstep::testing::kNextBit, lockstep::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::int64_t> steps_of(const fs::path& folder, SnapshotState state) {
  std::vector<std::int64_t> steps;
  for (const FoundSnapshot& snapshot : list_snapshots(folder)) {
    if (snapshot.state == state) steps.push_back(snapshot.step);
    EXPECT_EQ(snapshot.why_not.empty(), snapshot.state == SnapshotState::whole);
  }
  return steps;
}
void record(const fs::path& folder, std::int64_t number, std::optional<std::int64_t> from_step) {
  record_generation(folder,
                    {.number = number, .from_step = from_step, .writer = kWriter, .time = "2026-11-23T03:00:00Z"});
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Flips it in place.
void flip(const fs::path& path, std::size_t bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const int was = file.get();
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(static_cast<char>(was ^ (1 << (bit % 8))));
  ASSERT_TRUE(file.good());
}

// A folder in which generation 1 has begun.
class Series : public ::testing::Test {
 protected:
  Series() { record(folder_, 1, std::nullopt); }
  void save(std::initializer_list<std::int64_t> steps, std::int64_t generation = 1) const {
    for (const std::int64_t step : steps) save_step(folder_, step, generation);
  }
  // Generation 2 has resumed from step 4, and saved step 8.
  void resume() const {
    save({4});
    record(folder_, 2, 4);
    save({8}, 2);
  }
  std::vector<std::int64_t> steps(SnapshotState state) const { return steps_of(folder_, state); }
  std::vector<std::int64_t> whole() const { return steps(SnapshotState::whole); }
  std::string why_not(std::size_t snapshot = 0) const { return list_snapshots(folder_).at(snapshot).why_not; }

  const TemporaryFolder folder_;
};

TEST_F(Series, OfNoFolderIsEmpty) {
  EXPECT_THAT(list_snapshots(folder_ / "none"), IsEmpty());
  EXPECT_THAT(list_generations(folder_ / "none"), IsEmpty());
  EXPECT_EQ(newest_generation(folder_ / "none"), 0);
}

TEST_F(Series, ASnapshotIsFoundAsItWasWritten) {
  record(folder_, 2, std::nullopt);
  const Manifest written = save_step(folder_, 1200, 2);
  const auto found = list_snapshots(folder_);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].path.filename(), "step-000000001200-g000002");
  EXPECT_EQ(found[0].step, 1200);
  EXPECT_EQ(found[0].generation, 2);
  EXPECT_EQ(found[0].bytes, written.files.at(0).bytes + written.files.at(1).bytes);
  EXPECT_EQ(to_text(found[0].manifest.value()), to_text(written));
  expect_step(found[0]);
  // The same, wherever it is copied to.
  fs::copy(found[0].path, folder_ / "elsewhere", fs::copy_options::recursive);
  const FoundSnapshot copy = open_snapshot(folder_ / "elsewhere");
  EXPECT_EQ(copy.step, 1200);
  expect_step(copy);
  expect_text(error_of([&] { open_snapshot(folder_); }), {"is not a snapshot", "no manifest.json"});
}

TEST_F(Series, AGenerationFencesWhatItDidNotGoOnFrom) {
  save({4, 8, 12});
  record(folder_, 2, 8);
  EXPECT_THAT(whole(), ElementsAre(8, 4));
  EXPECT_THAT(steps(SnapshotState::fenced), ElementsAre(12));
  expect_text(why_not(), {"generation 2 (rank 0 (host n, pid 1))", "from step 8"});
  save_step(folder_, 12, 2);
  EXPECT_THAT(whole(), ElementsAre(12, 8, 4));
  EXPECT_EQ(newest_whole(folder_)->generation, 2);
  record(folder_, 3, 4);  // back behind what generation 2 went on from
  EXPECT_THAT(whole(), ElementsAre(4));
  record(folder_, 4, std::nullopt);
  EXPECT_THAT(whole(), IsEmpty());
  EXPECT_THAT(steps(SnapshotState::fenced), ElementsAre(12, 12, 8, 4));
}

TEST_F(Series, AFencedRunSavesNoMore) {
  resume();
  expect_text(error_of([&] { save({12}); }), {"step 12 is not saved", "rank 0 (host n, pid 1) has resumed",
                                              "generation 2", "generation 1", "end this run"});
  EXPECT_FALSE(fs::exists(folder_ / "step-000000000012-g000001"));
  EXPECT_THAT(whole(), ElementsAre(8, 4));
}

TEST_F(Series, ANumberIsTakenOnce) {
  EXPECT_NO_THROW(record(folder_, 1, std::nullopt));  // another rank of the same start, on a shared disk
  expect_text(error_of([&] { record_generation(folder_, {.number = 1, .writer = "another", .time = "later"}); }),
              {"taken over by rank 0 (host n, pid 1)", "give this job another"});
  const auto generations = list_generations(folder_);
  ASSERT_EQ(generations.size(), 1u);
  EXPECT_EQ(generations[0].writer, kWriter);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.string()), {}), 1) << "a claim is left";
}

TEST_F(Series, ADamagedRecordFencesNothingAndRemovesNothing) {
  resume();
  const fs::path path = folder_ / "generation-000002.json";
  const std::string text = text_of(path);
  for (std::size_t bit = 0; bit < 8 * text.size(); bit += kNextBit) {
    flip(path, bit);
    ASSERT_THAT(whole(), ElementsAre(8)) << bit;
    ASSERT_THAT(steps(SnapshotState::damaged), ElementsAre(4)) << bit;
    flip(path, bit);
  }
  EXPECT_THAT(whole(), ElementsAre(8, 4));
  flip(path, 100);
  expect_text(why_not(1), {"generation 2", "is lost", "generation-000002.json"});
  clean(folder_, {.keep = 1});
  EXPECT_EQ(list_snapshots(folder_).size(), 2u);
  std::ofstream(path, std::ios::binary) << text;
  EXPECT_THAT(whole(), ElementsAre(8, 4));
}

TEST_F(Series, WhatALaterLockstepHasWrittenIsNotDamagedAndStays) {
  save({1, 2, 3});
  const fs::path later = folder_ / "step-000000000002-g000001";
  rewrite_as_later(later / "manifest.json", "lockstep snapshot");
  EXPECT_THAT(steps(SnapshotState::later), ElementsAre(2));
  expect_text(why_not(1), {"was written by a later lockstep (format 2; this one reads up to 1)"});
  expect_text(error_of([&] { open_snapshot(later); }), {later.string(), "can't be read", "update lockstep"});
  clean(folder_, {.keep = 1});
  EXPECT_THAT(whole(), ElementsAre(3));
  EXPECT_THAT(steps(SnapshotState::later), ElementsAre(2));
  record(folder_, 2, std::nullopt);  // fences all
  clean(folder_, {.keep = 1});
  clean_rescues(folder_, 3, std::nullopt);
  EXPECT_TRUE(fs::exists(later / "model.safetensors"));
}

TEST_F(Series, ARecordOfALaterLockstepFencesNothingThatItCouldHaveGoneOnFrom) {
  resume();
  rewrite_as_later(folder_ / "generation-000002.json", "lockstep generation");
  EXPECT_THAT(whole(), ElementsAre(8));
  EXPECT_THAT(steps(SnapshotState::later), ElementsAre(4));
  expect_text(why_not(1),
              {"whether generation 2 resumed from it can't be read", "generation-000002.json", "update lockstep"});
  clean(folder_, {.keep = 1});
  EXPECT_EQ(list_snapshots(folder_).size(), 2u);
  EXPECT_EQ(list_generations(folder_).size(), 2u) << "what it fences is not known";
}

TEST_F(Series, TheNextGenerationIsBeyondThatOfACopiedSnapshot) {
  const TemporaryFolder to;
  record(folder_, 5, std::nullopt);
  save({4}, 5);
  fs::copy(folder_ / "step-000000000004-g000005", to / "step-000000000004-g000005", fs::copy_options::recursive);
  EXPECT_EQ(newest_generation(to), 5);
  EXPECT_THAT(steps_of(to, SnapshotState::whole), ElementsAre(4));
}

TEST_F(Series, AFolderThatWasEmptiedAndBegunAnewFencesWhoStillWritesToIt) {
  save({1});
  for (const auto& entry : fs::directory_iterator(fs::path(folder_))) fs::remove_all(entry.path());
  record_generation(folder_, {.number = 1, .writer = "rank 0 (host m, pid 2)", .time = "later"});
  expect_text(error_of<InvalidArgument>([&] { save_step(folder_, 2, 1); }),
              {"step 2 is not saved", "was emptied, and rank 0 (host m, pid 2) has begun a new run in the folder",
               "end this run"});
  EXPECT_TRUE(list_snapshots(folder_).empty());
}

TEST_F(Series, ASurvivorsUnfinishedSnapshotIsNotRemovedByItsOwnRun) {
  save({1});
  const fs::path under_way = folder_ / "step-000000000002-g000001-r2";
  fs::create_directory(under_way);
  std::ofstream(under_way / "model.safetensors") << "half";
  clean(folder_, {.keep = 1});
  EXPECT_TRUE(fs::exists(under_way / "model.safetensors"));
  record(folder_, 2, 1);
  clean(folder_, {.keep = 1});
  EXPECT_FALSE(fs::exists(under_way)) << "the next run has nobody who writes it";
}

TEST_F(Series, KeepsTheNewestAndEveryNth) {
  for (std::int64_t step = 1; step <= 12; ++step) {
    save_step(folder_, step, 1);
    clean(folder_, {.keep = 2, .keep_every = 5});
  }
  EXPECT_THAT(whole(), ElementsAre(12, 11, 10, 5));
  clean(folder_, {.keep = 1});
  EXPECT_THAT(whole(), ElementsAre(12));
}

TEST_F(Series, ARecordGoesOnceALaterOneFencesAllThatItDoes) {
  const auto numbers = [&] {
    std::vector<std::int64_t> all;
    for (const Generation& it : list_generations(folder_)) all.push_back(it.number);
    return all;
  };
  save({4, 8});
  record(folder_, 2, 8);
  record(folder_, 3, 8);   // generation 2 has saved nothing
  record(folder_, 4, 12);  // and 3 up to 12
  remove_spent_records(folder_);
  EXPECT_THAT(numbers(), ElementsAre(1, 3, 4));
  EXPECT_THAT(whole(), ElementsAre(8, 4));
  record(folder_, 5, 4);  // back behind them
  clean(folder_, {.keep = 3});
  EXPECT_THAT(numbers(), ElementsAre(1, 5));
  EXPECT_THAT(whole(), ElementsAre(4));
  record(folder_, 6, std::nullopt);
  clean(folder_, {.keep = 3});
  EXPECT_THAT(numbers(), ElementsAre(6));
  EXPECT_EQ(newest_generation(folder_), 6);
}

TEST(RescueClaim, IsOfOneProcessAndGoesToTheNextWithItsEnd) {
  const TemporaryFolder folder;
  bool is_saved = false;
  const auto take = [&](const Deadline& deadline) {
    return RescueClaim::take(
               folder / "run", 6, 1, [&] { return is_saved; }, deadline)
        .has_value();
  };
  Child child([&](const lockstep::testing::Line& line) {
    const auto claim = RescueClaim::take(
        folder / "run", 6, 1, [] { return false; }, Deadline::never());
    line.tell(claim.has_value());
    return Child::stay();
  });
  ASSERT_TRUE(child.told<bool>());
  EXPECT_FALSE(take(Deadline::after(std::chrono::milliseconds(1)))) << "it has it";
  std::thread killer([&] { ::kill(child.pid(), SIGKILL); });
  EXPECT_TRUE(take(Deadline::never()));
  killer.join();
  EXPECT_TRUE(take(Deadline::never())) << "who has let it go has not saved";
  is_saved = true;
  EXPECT_FALSE(take(Deadline::never()));
  remove_rescue_claims(folder / "run", 1);
  EXPECT_TRUE(fs::exists(folder / "run/step-000000000006-g000001.rescue")) << "of this generation";
  remove_rescue_claims(folder / "run", 2);
  EXPECT_TRUE(fs::is_empty(folder / "run"));
}

TEST_F(Series, RemovesWhatIsUnfinishedOrFencedAndKeepsWhatIsDamagedOrNotItsOwn) {
  const TemporaryFolder other;
  save({1, 2, 3, 4});
  fs::remove(folder_ / "step-000000000002-g000001/manifest.json");
  fs::remove(folder_ / "step-000000000003-g000001/model.safetensors");
  record(folder_, 2, 3);
  folder_.write("generation-000001.json.claim.0123.1", "left by a process that was killed");
  folder_.write("generation-000003.json.claim.0123.1", "of a start that is just happening");
  for (const char* name : {"step-000000000007-g000001", "step-7-g1", "step-000000000007", "notes"}) {
    folder_.write(fs::path(name) / "mine.txt", "the user's");
  }
  folder_.write("step-000000000008-g000001", "a file");
  // A snapshot of another run, linked here, without a manifest.
  other.write("kept.txt", "another run's");
  fs::create_directory_symlink(other.string(), folder_ / "step-000000000009-g000001");

  clean(folder_, {.keep = 2});
  EXPECT_THAT(whole(), ElementsAre(1));  // 4 is fenced, 2 was not finished, 3 is damaged
  EXPECT_THAT(steps(SnapshotState::damaged), ElementsAre(3));
  EXPECT_THAT(steps(SnapshotState::unfinished), IsEmpty());
  EXPECT_FALSE(fs::exists(folder_ / "generation-000001.json.claim.0123.1"));
  EXPECT_TRUE(fs::exists(folder_ / "generation-000003.json.claim.0123.1"));
  for (const char* name : {"step-7-g1", "step-000000000007", "notes"}) EXPECT_TRUE(fs::exists(folder_ / name)) << name;
  EXPECT_TRUE(fs::exists(folder_ / "step-000000000008-g000001"));
  EXPECT_TRUE(fs::exists(other / "kept.txt"));
}

TEST_F(Series, GoesOnCleaningWhereOneCanNotBeRemoved) {
  save({1, 2, 3, 4});
  folder_.write("step-000000000003-g000001/sub/mine.txt", "the user's");
  expect_text(error_of<SystemError>([&] { clean(folder_, {.keep = 1}); }), {"step-000000000003", "not empty"});
  EXPECT_THAT(whole(), ElementsAre(4));
  EXPECT_THAT(steps(SnapshotState::unfinished), ElementsAre(3));
}

TEST_F(Series, DamageIsFoundAndNamed) {
  save({1});
  const fs::path snapshot = folder_ / "step-000000000001-g000001";
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string text = text_of(snapshot / name);
    for (std::size_t bit = 0; bit < 8 * text.size(); bit += kNextBit) {
      flip(snapshot / name, bit);
      expect_text(error_of<CorruptData>([&] { verify_snapshot(list_snapshots(folder_).at(0)); }),
                  {name, "is damaged", "checksum"});
      ASSERT_FALSE(HasFailure()) << bit;
      flip(snapshot / name, bit);
    }
    std::ofstream(snapshot / name, std::ios::binary) << text.substr(0, text.size() - 1);
    expect_text(why_not(), {name, "bytes, and the manifest says"});
    fs::remove(snapshot / name);
    expect_text(why_not(), {name, "is missing"});
    expect_text(error_of<CorruptData>([&] { open_snapshot(snapshot); }), {name, "is missing"});
    std::ofstream(snapshot / name, std::ios::binary) << text;
    EXPECT_NO_THROW(verify_snapshot(list_snapshots(folder_).at(0)));
  }
  fs::rename(snapshot, folder_ / "step-000000000002-g000001");
  expect_text(why_not(), {"its manifest is that of step 1 of generation 1"});
}

TEST_F(Series, ShardsOnOneDiskAreWholeAndOnTwoAreParts) {
  const fs::path one = folder_ / "one", two = folder_ / "two";
  for (const fs::path& disk : {one, two}) {
    fs::create_directories(disk);
    record(disk, 1, std::nullopt);
  }
  save_shards({one, one}, 1, 1);
  EXPECT_THAT(steps_of(one, SnapshotState::whole), ElementsAre(1));
  expect_step(newest_whole(one).value());

  save_shards({one, two}, 2, 1);
  for (const auto& [disk, missing, rank] :
       {std::tuple{one, "optimizer.r0001.safetensors", "rank 1"}, std::tuple{two, "model.safetensors", "rank 0"}}) {
    const FoundSnapshot newest = list_snapshots(disk).at(0);
    EXPECT_EQ(newest.state, SnapshotState::partial);
    EXPECT_TRUE(newest.is_saved());
    expect_text(newest.why_not, {missing, "is missing, which", rank, "another host's disk"});
    EXPECT_NO_THROW(verify_snapshot(newest)) << "what is there";
    expect_text(error_of<InvalidArgument>([&] { open_snapshot(newest.path); }), {"is in parts", missing, "into one"});
  }
  EXPECT_THAT(list_snapshots(two).at(0).missing, ElementsAre("model.safetensors", "optimizer.r0000.safetensors"));
  flip(two / "step-000000000002-g000001/optimizer.r0001.safetensors", 8 * 100);
  expect_text(error_of<CorruptData>([&] { verify_snapshot(list_snapshots(two).at(0)); }),
              {"optimizer.r0001.safetensors is damaged"});

  // A part counts as one of those that are kept, and a step that other ranks write to now stays.
  fs::create_directory(one / "step-000000000003-g000001");
  fs::create_directory(one / "step-000000000004-g000001");
  clean(one, {.keep = 1, .being_written = 4});
  EXPECT_THAT(steps_of(one, SnapshotState::partial), ElementsAre(2));
  EXPECT_THAT(steps_of(one, SnapshotState::unfinished), ElementsAre(4));
  EXPECT_THAT(steps_of(one, SnapshotState::whole), IsEmpty());
  record(one, 2, 1);
  EXPECT_THAT(steps_of(one, SnapshotState::fenced), ElementsAre(2));
}

TEST_F(Series, AFileThatLacksItsSlicesIsDamaged) {
  const Manifest manifest = save_shards({folder_.string(), folder_.string()}, 1, 1);
  const fs::path snapshot = folder_ / "step-000000000001-g000001";
  Manifest hostile = manifest;  // the sum of slices is right, and no file has them
  hostile.items.at(1).sliced.at(0).slices = {{"optimizer.r0000.safetensors", 0, 3},
                                             {"optimizer.r0001.safetensors", 3, 6}};
  write_text(snapshot / "manifest.json", to_text(hostile));
  expect_text(error_of<CorruptData>([&] { verify_snapshot(list_snapshots(folder_).at(0)); }),
              {"optimizer.r0000.safetensors lacks a slice F32 [3] of tensor 'w' of item 'optimizer'"});
}

TEST_F(Series, AStepThatIsSavedAgainTakesTheOldOnesPlace) {
  save_step(folder_, 1, 1, 1000);
  fs::resize_file(folder_ / "step-000000000001-g000001/model.safetensors", 10);
  EXPECT_THAT(steps(SnapshotState::damaged), ElementsAre(1));
  save_step(folder_, 1, 1, 4);
  expect_step(newest_whole(folder_).value());
}

TEST(SeriesLock, ASecondProcessIsRefusedWithTheFirstOnesName) {
  const TemporaryFolder folder;
  Child child([&](const lockstep::testing::Line& line) {
    const SeriesLock lock(folder / "a/run", "rank 0 (host node7, pid 4711)");
    line.tell(1);
    return Child::stay();
  });
  child.told<int>();
  const auto take = [&] { const SeriesLock lock(folder / "a/run", "rank 0 (host node8, pid 12)"); };
  expect_text(error_of(take), {"a/run", "in use by rank 0 (host node7, pid 4711) since 20", "give this job another"});
  ASSERT_EQ(::kill(child.pid(), SIGKILL), 0);
  ASSERT_TRUE(WIFSIGNALED(child.wait()));
  EXPECT_NO_THROW(take());
  EXPECT_NO_THROW(take());
  const std::string text = text_of(folder / "a/run/lock");
  EXPECT_THAT(text, AllOf(HasSubstr("node8"), ::testing::Not(HasSubstr("node7"))));
}

TEST_F(Series, AFileSystemWithoutLinksAndFilesThatHaveNoNameHasSnapshotsToo) {
  for (const int error : {EPERM, EOPNOTSUPP, ENOSYS}) {
    const fs::path run = folder_ / std::to_string(error);
    Child child([&](const lockstep::testing::Line&) {
      EXPECT_TRUE(lockstep::testing::forbid_calls(EOPNOTSUPP, error));
      Job(run).save();
      Job(run).save();
      EXPECT_THROW(record(run, 2, 1), InvalidArgument) << "another has that number";
      return ::testing::Test::HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(child.wait(), 0) << error;
    const auto newest = newest_whole(run);
    ASSERT_TRUE(newest);
    EXPECT_EQ(std::pair(newest->step, newest->generation), std::pair(std::int64_t{2}, std::int64_t{2}));
  }
}

// A sparse file, /dev/zero or a pipe where a record or a manifest was: nobody waits for it, or reads it to its end.
TEST_F(Series, ARecordOrManifestThatIsNoFileOrTooLongIsDamaged) {
  const std::function<void(const fs::path&)> spoil[] = {
      [](const fs::path& path) { fs::resize_file(path, std::uintmax_t{1} << 36); },
      [](const fs::path& path) {
        fs::remove(path);
        ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
      },
      [](const fs::path& path) {
        fs::remove(path);
        fs::create_symlink("/dev/zero", path);
      }};
  for (std::size_t i = 0; i < std::size(spoil); ++i) {
    const fs::path run = folder_ / std::to_string(i);
    Job(run).save();
    spoil[i](run / "step-000000000001-g000001/manifest.json");
    EXPECT_EQ(list_snapshots(run).at(0).state, SnapshotState::damaged) << i;
    spoil[i](run / "generation-000001.json");
    EXPECT_FALSE(list_generations(run).at(0).why_not.empty()) << i;
  }
}

TEST(SeriesLock, ALinkOrAFileInItsPlaceIsRefusedAndStays) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "run");
  folder.write("mine", "precious");
  fs::create_symlink(folder / "mine", folder / "run/lock");
  expect_text(error_of([&] { SeriesLock(folder / "run", "me"); }), {"run/lock' is a symbolic link"});
  expect_text(error_of([&] { SeriesLock(folder / "mine", "me"); }), {"mine", "is a file, and must be a folder"});
  expect_text(error_of([&] { SeriesLock(folder / "mine/below", "me"); }), {"a part of this path is a file"});
  EXPECT_EQ(text_of(folder / "mine"), "precious");
}

}  // namespace
}  // namespace lockstep::checkpoint::series_test
