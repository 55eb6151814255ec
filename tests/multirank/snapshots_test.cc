// SPDX-License-Identifier: Apache-2.0
// A run that stopped and goes on computes what one that never stopped does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <latch>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "runtime/base/mutex.h"
#include "tests/multirank/snapshot_program.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_to.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::snapshots_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
TEST(Snapshots, WhatGoesOnComputesTheSameBits) {
  for (const int ranks : {1, 2, 3}) {
    const TemporaryFolder whole, parts;
    const Outcome undisturbed = run(ranks, whole / "run", kSteps);
    EXPECT_EQ(undisturbed.restored, std::nullopt);
    EXPECT_EQ(run(ranks, parts / "run", 6).restored, std::nullopt);
    EXPECT_EQ(run(ranks, parts / "run", 11).restored, 4);
    const Outcome last = run(ranks, parts / "run", kSteps);
    EXPECT_EQ(last.restored, 8);
    EXPECT_EQ(last.weights, undisturbed.weights) << ranks;
    EXPECT_EQ(last.samples, undisturbed.samples);
  }
}

TEST(Snapshots, GoOnAtAnotherNumberOfRanks) {
  const TemporaryFolder whole, parts;
  const Outcome undisturbed = run(1, whole / "run", kSteps);
  run(3, parts / "run", 6);
  run(2, parts / "run", 10);
  const Outcome last = run(1, parts / "run", kSteps);
  EXPECT_EQ(last.restored, 8);
  EXPECT_EQ(last.samples, undisturbed.samples);
  expect_close(last.weights, undisturbed.weights, "3, 2 and 1 ranks");
}

TEST(Snapshots, GoOnAtFewerRanksWithEachSampleOnce) {
  const TemporaryFolder folder;
  Mutex mutex;
  std::vector<std::int64_t> read;                                        // by all ranks of all runs
  for (const auto& [ranks, stop] : {std::pair{4, 1}, {3, 3}, {2, 5}}) {  // of the five batches of an epoch
    run_ranks(ranks, [&, until = stop](const Group& group) {
      Program it(group, folder / "run", {.every = 1});
      it.snapshots.restore();
      it.train(until);
      MutexLock lock(mutex);
      read.insert(read.end(), it.read.begin(), it.read.end());
    });
  }
  std::sort(read.begin(), read.end());
  std::vector<std::int64_t> each(kSamples);
  std::iota(each.begin(), each.end(), 0);
  EXPECT_EQ(read, each);
}

TEST(Snapshots, AreKeptAsTheOptionsSay) {
  const TemporaryFolder folder;
  run(2, folder / "run", 12, {.every = 2, .keep = 2, .keep_every = 6});
  EXPECT_THAT(snapshots_in(folder / "run"),
              ElementsAre("step-000000000006-g000001", "step-000000000010-g000001", "step-000000000012-g000001"));
}

// There the host may have been ahead of the device, and then the last step that was saved counts.
constexpr bool kIsOnGpu = std::string_view(LOCKSTEP_TEST_BACKEND) == "nccl";

// Rank `dead` leaves in the middle of a step, as a rank that dies does for the others; they unwind.
void run_until_lost(int ranks, const fs::path& folder, int dead, std::int64_t at_step, const SnapshotOptions& options) {
  EXPECT_ANY_THROW(run_ranks(ranks, [&](const Group& group) {
    SnapshotOptions own = options;
    own.rescue = options.rescue && group->rank() != dead;  // a dead rank saves nothing
    Program it(group, folder, own);
    it.snapshots.restore();
    it.train(at_step);
    group->barrier().wait();  // all have finished that step
    if (group->rank() == dead) throw std::runtime_error("this rank dies");
    it.train(at_step + 5);
  }));
}

TEST(Snapshots, ALostRankCostsNoFinishedStep) {
  for (const int dead : {0, 1, 2}) {
    const TemporaryFolder whole, parts;
    const Outcome undisturbed = run(3, whole / "run", kSteps);
    run_until_lost(3, parts / "run", dead, 6, {.every = 4});
    const Outcome last = run(3, parts / "run", kSteps);
    EXPECT_THAT(last.restored.value_or(0), AnyOf(6, kIsOnGpu ? 4 : 6)) << dead;
    EXPECT_EQ(last.weights, undisturbed.weights) << dead;
    EXPECT_EQ(last.samples, undisturbed.samples) << dead;
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

// Steps of two micro-batches, step() behind each. Ends behind step `stop`, or with an error behind the micro-batch
// after it.
void accumulate(Program& it, std::int64_t stop, bool fails) {
  int micro_batch = 0;
  for (std::int64_t epoch = it.loader.epoch(); it.ddp.steps() <= stop; ++epoch) {
    it.loader.set_epoch(epoch);
    for (const data::Batch& batch : it.loader) {
      const auto& [x, y, ids] = batch.to(it.group->device());
      const bool closes = micro_batch++ % 2 == 1;
      {
        const auto local = it.ddp.no_sync(!closes);
        it.ddp.backward(mse_loss(it.ddp(x, ids), y));
      }
      if (closes) {
        it.optimizer.step();
        it.optimizer.zero_grad();
      }
      it.snapshots.step();
      if (it.ddp.steps() < stop || closes == fails) continue;
      if (fails) {
        it.group->barrier().wait();  // all have finished that step: a rank that is still in it saves the one before
        throw std::runtime_error("between two micro-batches");
      }
      return;
    }
  }
}

TEST(Snapshots, WhatEndsBetweenMicroBatchesGoesOnFromTheStepBefore) {
  for (const int ranks : {1, 2, 3}) {
    const TemporaryFolder whole, parts;
    const auto run_to = [&](const fs::path& folder, std::int64_t stop, bool fails) {
      Values weights;
      run_ranks(ranks, [&](const Group& group) {
        Program it(group, folder, {});
        it.snapshots.restore();
        accumulate(it, stop, fails);
        if (group->rank() == 0) weights = weights_of(it.model);
      });
      return weights;
    };
    const Values undisturbed = run_to(whole / "run", 6, false);
    EXPECT_ANY_THROW(run_to(parts / "run", 3, true));
    if (!kIsOnGpu) {
      EXPECT_THAT(snapshots_in(parts / "run"),
                  ElementsAre(HasSubstr("step-000000000003-"), "step-000000000003-g000001.rescue"));
    }
    EXPECT_EQ(run_to(parts / "run", 6, false), undisturbed) << ranks << " ranks";
  }
}

TEST(Snapshots, ALostRankCostsWhatTheOptionsSay) {
  const TemporaryFolder parts;
  run_until_lost(2, parts / "run", 1, 6, {.every = 4, .rescue = false});
  EXPECT_EQ(run(2, parts / "run", kSteps).restored, 4);
}

TEST(Snapshots, ValuesOfEachRankComeBackOrAreSummedDroppedOrRefused) {
  struct Seen {
    std::int64_t tokens = -1, local = -1;
  };
  const auto run_with = [](int ranks, const fs::path& folder, AtAnotherSize tokens_at, std::vector<Seen>& seen) {
    seen.assign(static_cast<std::size_t>(ranks), {});
    run_ranks(ranks, [&](const Group& group) {
      nn::Sequential model = Program::make_model(1, group->device());
      DistributedDataParallel ddp(model, group);
      std::int64_t tokens = 10 + group->rank(), local = 100 + group->rank();
      Snapshots snapshots(folder, ddp);
      snapshots.add_per_rank("tokens", tokens, tokens_at);
      snapshots.add_per_rank("local", local, AtAnotherSize::drop);
      const auto restored = snapshots.restore();
      seen[static_cast<std::size_t>(group->rank())] = {tokens, local};
      if (!restored) snapshots.save();
    });
  };
  const TemporaryFolder folder;
  std::vector<Seen> seen;
  run_with(3, folder / "run", AtAnotherSize::sum, seen);
  run_with(3, folder / "run", AtAnotherSize::sum, seen);
  EXPECT_EQ(seen[2].tokens, 12);
  EXPECT_EQ(seen[2].local, 102);
  run_with(2, folder / "run", AtAnotherSize::sum, seen);
  EXPECT_EQ(seen[0].tokens, 33);
  EXPECT_EQ(seen[1].tokens, 0);
  EXPECT_EQ(seen[1].local, 101);  // as the program had it
  EXPECT_THAT(error_of([&] { run_with(2, folder / "run", AtAnotherSize::refuse, seen); }),
              HasSubstr("item 'tokens' has one value for each of 3 ranks, and this job has 2"));
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
  EXPECT_THAT(error_of([&] { run_with(false, {}); }),
              AllOf(HasSubstr("it has 'extra', which the program has not added"),
                    HasSubstr("it lacks 'other', which the program has added")));
  EXPECT_EQ(run_with(false, {.allow_missing = true, .allow_unexpected = true}), 0);
}

TEST(Snapshots, ADamagedOneIsPassedOver) {
  const TemporaryFolder folder;
  run(2, folder / "run", 10);
  {
    std::fstream file(folder / "run" / "step-000000000008-g000001" / "model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('x');
  }
  EXPECT_EQ(run(2, folder / "run", 5).restored, 4);
}

TEST(Snapshots, WhereAllAreDamagedNothingBeginsAnew) {
  const TemporaryFolder folder;
  run(2, folder / "run", 5);
  const fs::path only = folder / "run" / "step-000000000004-g000001" / "model.safetensors";
  std::string bytes;
  {
    std::ifstream in(only, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto write = [&](const std::string& text) { std::ofstream(only, std::ios::binary) << text; };
  for (const std::string& damaged : {bytes.substr(1), bytes.substr(1) + "x"}) {  // another size, other bytes
    write(damaged);
    EXPECT_THAT(error_of([&] { run(2, folder / "run", 6); }),
                HasSubstr("has 1 damaged snapshot and none that is whole"));
  }
  write(bytes);
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
    EXPECT_THAT(text, HasSubstr("the replicas are not equal any more"));
    EXPECT_THAT(snapshots_in(run), ElementsAre("step-000000000003-g000001")) << "step 4 is of one rank";
  }
}

TEST(Snapshots, AStopThatIsAgreedOnBehindTheLastStepIsSavedAtTheEnd) {
  const TemporaryFolder whole, parts;
  const Outcome undisturbed = run(2, whole / "run", kSteps);
  run_ranks(2, [&](const Group& group) {
    Program it(group, parts / "run", {.every = 4});
    it.snapshots.restore();
    it.train(6);
    if (group->rank() == 1) request_stop(*group, "enough");
    group->barrier().wait();
    EXPECT_EQ(should_stop(*group, StopView::all_ranks), "enough");  // as an evaluation's Metrics do
  });
  const Outcome last = run(2, parts / "run", kSteps);
  EXPECT_EQ(last.restored, 6);
  EXPECT_EQ(last.weights, undisturbed.weights);
}

TEST(Snapshots, ASaveOfAStepThatIsBeingWrittenIsLoggedOnce) {
  for (const Shard shard : {Shard::none, Shard::optimizer}) {
    const TemporaryFolder folder;
    ::testing::internal::CaptureStderr();
    run_ranks(2, [&](const Group& group) {
      Program it(group, folder / "run", {.every = 4}, shard);
      it.snapshots.restore();
      it.waits = false;
      it.train(4);
      it.snapshots.save();
    });
    const std::string log = ::testing::internal::GetCapturedStderr();
    const auto first = log.find("step 4 is saved in");
    ASSERT_NE(first, log.npos) << log;
    EXPECT_EQ(log.find("step 4 is saved in", first + 1), log.npos) << log;
  }
}

TEST(Snapshots, ASecondJobInTheFolderIsRefused) {
  const TemporaryFolder folder;
  run_ranks(1, [&](const Group& group) {
    Program first(group, folder / "run", {});
    first.snapshots.restore();
    Program second(group, folder / "run", {});
    EXPECT_THAT(error_of([&] { second.snapshots.restore(); }), HasSubstr("is in use by rank 0"));
  });
}

TEST(Snapshots, ABitThatFlippedInAnyFileCostsThatSnapshotAlone) {
  const TemporaryFolder whole;
  const Outcome undisturbed = run(2, whole / "run", kSteps);
  for (const char* name : {"manifest.json", "model.safetensors", "optimizer.safetensors"}) {
    const TemporaryFolder folder;
    run(2, folder / "run", 10);
    const fs::path path = folder / "run" / "step-000000000008-g000001" / name;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
    file.seekg(middle);
    const int was = file.get();
    file.seekp(middle);
    file.put(static_cast<char>(was ^ 4));
    file.close();
    const Outcome last = run(2, folder / "run", kSteps);
    EXPECT_EQ(last.restored, 4) << name;
    EXPECT_EQ(last.weights, undisturbed.weights) << name;
  }
}

// Weights of the listed names, all of them one tensor with `tied`.
struct Vectors : nn::Module {
  Vectors(const std::vector<std::string>& names, bool tied) {
    for (const std::string& name : names) {
      vectors.push_back(tied && !vectors.empty() ? share_parameter(name, vectors[0])
                                                 : register_parameter(name, {1, 4}, nn::Init::uniform(1)));
    }
  }
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (const Tensor& vector : vectors) y = y * vector;
    return y;
  }
  std::vector<Tensor> vectors;
};

// The values of the first vector after restore(), before a step that is saved.
std::vector<float> go_on_with(const fs::path& folder, const std::vector<std::string>& names, bool tied, int ranks = 1,
                              Shard shard = Shard::none) {
  std::vector<float> values;
  run_ranks(ranks, [&](const Group& group) {
    Vectors model(names, tied);
    model.initialize(1);
    model.to(group->device());
    DistributedDataParallel ddp(model, group, {.shard = shard});
    optim::AdamW optimizer(ddp.parameters(), {.lr = 0.1});
    Snapshots snapshots(folder, ddp);
    snapshots.add("optimizer", optimizer);
    snapshots.restore();
    if (group->rank() == 0) values = model.vectors[0].to(DeviceId{}).to_vector();
    const Tensor x = Tensor::full({1, 4}, 0.5f).to(group->device());
    ddp.backward(mse_loss(ddp(x), x));
    optimizer.step();
    snapshots.step();
    snapshots.save();
  });
  return values;
}

std::vector<float> tensor_in(const fs::path& folder, const std::string& item, const std::string& name) {
  const checkpoint::SafetensorsFile file(folder / snapshots_in(folder).back() / (item + ".safetensors"));
  std::vector<float> values(4);
  file.read(file.find(name), std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(Snapshots, TiedTensorsAreSavedUnderEachNameAndRestoredFromAny) {
  for (const bool was_tied : {false, true}) {
    const TemporaryFolder folder;
    // First one that was saved by one name, or by the other order of both.
    go_on_with(folder / "run", was_tied ? std::vector<std::string>{"head", "wte"} : std::vector<std::string>{"head"},
               was_tied);
    std::vector<float> before = tensor_in(folder / "run", "model", "head");
    const std::vector<float> moment = tensor_in(folder / "run", "optimizer", "state.head.exp_avg");
    for (const auto& [ranks, shard] : {std::pair(1, Shard::none), {2, Shard::optimizer}, {3, Shard::none}}) {
      EXPECT_EQ(go_on_with(folder / "run", {"wte", "head"}, true, ranks, shard), before) << ranks;
      before = tensor_in(folder / "run", "model", "head");
      EXPECT_EQ(tensor_in(folder / "run", "model", "wte"), before);
    }
    EXPECT_NE(tensor_in(folder / "run", "optimizer", "state.wte.exp_avg"), moment);
  }
}

TEST(Snapshots, TensorsThatWereNotEqualAreNotTied) {
  const TemporaryFolder folder;
  go_on_with(folder / "run", {"wte", "head"}, false);
  EXPECT_NE(tensor_in(folder / "run", "model", "wte"), tensor_in(folder / "run", "model", "head"));
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(error_of([&] {
                  go_on_with(folder / "run", {"wte", "head"}, true, ranks);
                }),
                AllOf(HasSubstr("model: 'wte' and 'head' are tied in the program, and not equal")));
  }
  go_on_with(folder / "run", {"wte", "head"}, false);
}

TEST(Snapshots, AModelOfAnotherSizeIsNamed) {
  const TemporaryFolder folder;
  run(2, folder / "run", 5);
  EXPECT_THAT(error_of([&] {
                run_ranks(2, [&](const Group& group) {
                  nn::Sequential model{nn::Linear(5, 8), nn::Tanh(), nn::Dropout(0.3f), nn::Linear(8, 2)};
                  model.initialize(1);
                  model.to(group->device());
                  DistributedDataParallel ddp(model, group);
                  Snapshots snapshots(folder / "run", ddp, {.restore = {.allow_unexpected = true}});
                  snapshots.restore();
                });
              }),
              AllOf(HasSubstr("does not fit this program"), HasSubstr("'0.weight' is F32 [16, 5]"),
                    HasSubstr("the program's is F32 [8, 5]")));
}

TEST(Snapshots, AFullDiskCostsSnapshotsAndNoTraining) {
  const auto train = [](const fs::path& folder, rlim_t largest_file) {
    Values weights;
    run_ranks(1, [&](const Group& group) {
      Program it(group, folder / "run", {.every = 2});
      it.snapshots.restore();
      it.train(4);
      {
        const LimitedTo size(RLIMIT_FSIZE, largest_file);
        it.train(9);
        EXPECT_EQ(fs::exists(folder / "run/step-000000000008-g000001"), largest_file == RLIM_INFINITY);
      }
      it.train(kSteps);
      weights = weights_of(it.model);
    });
    return weights;
  };
  const TemporaryFolder whole, full;
  EXPECT_EQ(train(full, 100), train(whole, RLIM_INFINITY));
  EXPECT_EQ(snapshots_in(full / "run"), snapshots_in(whole / "run"));  // the newest three
  EXPECT_EQ(snapshots_in(full / "run").size(), 3u);
}

TEST(Snapshots, AFolderThatHasGoneCostsSnapshotsAndNoTraining) {
  const TemporaryFolder folder;
  run_ranks(1, [&](const Group& group) {
    Program it(group, folder / "run", {.every = 2});
    it.snapshots.restore();
    it.train(4);
    fs::rename(folder / "run", folder / "moved");
    it.train(9);
    EXPECT_FALSE(fs::exists(folder / "run")) << "it would be another folder, without this job's lock";
    EXPECT_THAT(error_of([&] { it.snapshots.save(); }), HasSubstr("is gone from"));
    fs::rename(folder / "moved", folder / "run");
    it.train(10);
  });
  EXPECT_THAT(snapshots_in(folder / "run"),
              ElementsAre("step-000000000002-g000001", "step-000000000004-g000001", "step-000000000010-g000001"));
}

}  // namespace
}  // namespace lockstep::testing::snapshots_test
