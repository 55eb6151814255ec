// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/choose_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/comm/init/agree.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"

namespace lockstep::choose_backend_test {
namespace {

using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatience{40};

Backend backend(std::string name, std::string why_not) {
  return {.name = std::move(name),
          .why_not = [why_not](const GroupContext&) { return why_not; },
          .create = {},
          .must_agree = false};
}

GroupContext context_of(std::vector<std::string> boot_ids) {
  GroupContext context;
  context.store = std::make_shared<store::HashStore>();
  for (std::size_t i = 0; i < boot_ids.size(); ++i) {
    context.roster.push_back(
        {.rank = static_cast<int>(i), .local_rank = 0, .pid = 1, .host = "on-" + boot_ids[i], .boot_id = boot_ids[i]});
  }
  return context;
}

std::string refusal(std::string_view name, std::span<const Backend> candidates, const GroupContext& context) {
  return error_of<BackendUnavailable>([&] { choose_backend(name, candidates, context, Deadline::after(kPatience)); });
}

TEST(ChooseBackend, AutoTakesTheFirstThatCanAndSaysWhyNotTheOthers) {
  const std::vector<Backend> candidates = {backend("one", "one is full; empty it"), backend("two", ""),
                                           backend("three", "")};
  const BackendChoice choice = choose_backend("auto", candidates, context_of({"a", "a"}), Deadline::after(kPatience));
  EXPECT_EQ(choice.backend->name, "two");
  EXPECT_EQ(choice.why, "auto; one is full");
  EXPECT_EQ(choose_backend("three", candidates, context_of({"a"}), Deadline::after(kPatience)).backend->name, "three");
}

TEST(ChooseBackend, AskedForIsNeverReplaced) {
  const std::vector<Backend> candidates = {backend("one", "one is full; empty it"), backend("two", "")};
  EXPECT_EQ(refusal("one", candidates, context_of({"a"})),
            "init_process_group: backend 'one' was asked for, and can't be used: one is full; empty it. Pass backend "
            "'auto' to let lockstep choose one");
}

// Rank 0, which hosts the store, had the same reason and was faster to say so.
TEST(ChooseBackend, WhatThisRankMissesIsSaidWhateverBecameOfTheStore) {
  class Lost : public store::HashStore {
   public:
    void set(std::string_view, std::string_view) override { throw PeerLost("rank 0 failed"); }
  };
  Backend plugin = backend("plugin", "its file is missing; install it");
  plugin.must_agree = true;
  GroupContext context = context_of({"a", "a"});
  context.store = std::make_shared<Lost>();
  EXPECT_EQ(refusal("plugin", {&plugin, 1}, context),
            "init_process_group: backend 'plugin' was asked for, and can't be used: its file is missing; install it. "
            "Pass backend 'auto' to let lockstep choose one");
  plugin.why_not = [](const GroupContext&) { return std::string(); };
  EXPECT_THROW(choose_backend("plugin", {&plugin, 1}, context, Deadline::after(kPatience)), PeerLost);
}

TEST(ChooseBackend, NcclAndItsLikeAreRefusedInOneSentence) {
  const std::vector<Backend> candidates = {backend("single", ""), backend("shm", "")};
  for (const char* name : {"nccl", "ucc"}) {
    EXPECT_EQ(error_of<BackendUnavailable>([&] { require_known_backend(name, candidates); }),
              "init_process_group: backend '" + std::string(name) +
                  "' was asked for and this build doesn't have it; pass one of: auto, single, shm");
  }
  EXPECT_EQ(error_of([&] { require_known_backend("smh", candidates); }),
            "init_process_group: backend 'smh' is unknown; pass one of: auto, single, shm");
  EXPECT_EQ(error_of([&] { require_known_backend("smh", candidates, "environment: LOCKSTEP_BACKEND"); }),
            "environment: LOCKSTEP_BACKEND: backend 'smh' is unknown; pass one of: auto, single, shm");
  EXPECT_NO_THROW(require_known_backend("auto", candidates));
  EXPECT_NO_THROW(require_known_backend("shm", candidates));
}

TEST(ChooseBackend, TheDeviceDecidesWhichCanServe) {
  std::vector<Backend> candidates = {backend("cpus", ""), backend("gpus", "")};
  candidates[1].device = DeviceKind::cuda;
  GroupContext context = context_of({"a"});
  EXPECT_EQ(choose_backend("auto", candidates, context, Deadline::after(kPatience)).backend->name, "cpus");
  EXPECT_EQ(refusal("gpus", candidates, context),
            "init_process_group: backend 'gpus' was asked for, and can't be used: backend 'gpus' computes on GPUs, "
            "this rank's device is "
            "cpu; use device 'cuda', or another backend. Pass backend 'auto' to let lockstep choose one");
  context.device = {DeviceKind::cuda, 2};
  EXPECT_EQ(choose_backend("auto", candidates, context, Deadline::after(kPatience)).backend->name, "gpus");
  EXPECT_EQ(refusal("cpus", candidates, context),
            "init_process_group: backend 'cpus' was asked for, and can't be used: backend 'cpus' computes on the CPU, "
            "this rank's device is "
            "cuda:2; use device 'cpu', or another backend. Pass backend 'auto' to let lockstep choose one");
}

TEST(ChooseBackend, RanksOnSeveralHostsAreRefusedInOneSentence) {
  const std::vector<Backend> candidates = {backend("shm", "not here; elsewhere")};
  EXPECT_EQ(
      refusal("auto", candidates, context_of({"a", "a", "b"})),
      "init_process_group: the ranks are on 2 hosts (on-a: ranks 0 and 1; on-b: rank 2), and no backend that works "
      "across hosts can be used: not here; make one of these backends usable, or start all ranks on one host");
  EXPECT_EQ(refusal("auto", candidates, context_of({"a", "a"})),
            "init_process_group: no backend can serve these 2 ranks: not here; ask for a backend by name, and the "
            "error will say what that backend needs");
}

Backend plug_in(std::string name, std::string why_not) {
  Backend result = backend(std::move(name), std::move(why_not));
  result.must_agree = true;
  return result;
}

// What rank 0 and rank 1, on two hosts, make of their candidates: the name of the choice, or the error.
std::vector<std::string> choices_of_two(const std::string& name, const std::vector<Backend>& of_rank_0,
                                        const std::vector<Backend>& of_rank_1) {
  std::vector<std::string> results(2);
  GroupContext context = context_of({"a", "b"});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank, own = context]() mutable {
      own.identity.rank = rank;
      std::string& result = results[static_cast<std::size_t>(rank)];
      try {
        const auto& candidates = rank == 0 ? of_rank_0 : of_rank_1;
        result = choose_backend(name, candidates, own, Deadline::after(kPatience)).backend->name;
      } catch (const BackendUnavailable& error) {
        result = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(ChooseBackend, APlugInIsTakenOnlyIfEveryRankHasIt) {
  const Backend here = backend("one", "one host only; elsewhere");
  const std::vector<Backend> both = {here, plug_in("x", ""), plug_in("y", "")};
  const std::vector<Backend> second_only = {here, plug_in("x", "x is missing; install it"), plug_in("y", "")};
  const std::vector<Backend> none = {here, plug_in("x", "x is missing; install it"), plug_in("y", "y too; buy it")};
  EXPECT_EQ(choices_of_two("auto", both, both), (std::vector<std::string>{"x", "x"}));
  EXPECT_EQ(choices_of_two("auto", both, second_only), (std::vector<std::string>{"y", "y"}));
  for (const std::string& text : choices_of_two("auto", both, none)) {
    EXPECT_THAT(text, AllOf(HasSubstr("x is missing; install it"), HasSubstr("y too; buy it"), HasSubstr("2 hosts")));
  }
  const auto asked = choices_of_two("x", second_only, both);
  const std::string asked_for = "init_process_group: backend 'x' was asked for, and can't be used: ";
  EXPECT_EQ(asked[0], asked_for + "x is missing; install it. Pass backend 'auto' to let lockstep choose one");
  EXPECT_EQ(asked[1],
            asked_for +
                "rank 0 (host on-a, pid 1): x is missing; install it. Pass backend 'auto' to let lockstep choose one");
}

// Else a rank that knows of what is built in would not wait for those that may have the plug-in.
TEST(ChooseBackend, WhatComesAfterAPlugInIsAgreedOnWithIt) {
  const std::vector<Backend> both = {plug_in("x", ""), backend("built in", "")};
  const std::vector<Backend> second_only = {plug_in("x", "x is missing; install it"), backend("built in", "")};
  EXPECT_EQ(choices_of_two("auto", both, both), (std::vector<std::string>{"x", "x"}));
  EXPECT_EQ(choices_of_two("auto", second_only, both), (std::vector<std::string>{"built in", "built in"}));
}

TEST(ChooseBackend, PyTorchsNameForTcpIsUnderstood) {
  const std::vector<Backend> candidates = {backend("shm", ""), backend("tcp", "")};
  EXPECT_NO_THROW(require_known_backend("gloo", candidates));
  EXPECT_EQ(choose_backend("gloo", candidates, context_of({"a"}), Deadline::after(kPatience)).backend->name, "tcp");
}

TEST(ChooseBackend, ARankThatDoesNotComeToAgreeIsNamed) {
  const std::vector<Backend> candidates = {plug_in("x", "")};
  GroupContext context = context_of({"a", "b"});
  EXPECT_THAT(error_of<Timeout>(
                  [&] { choose_backend("auto", candidates, context, Deadline::after(std::chrono::milliseconds(50))); }),
              AllOf(HasSubstr("rank 1 (host on-b"), HasSubstr("did not come")));
}

// A store that counts the keys that are waited for or read.
class CountingStore : public store::HashStore {
 public:
  std::string get(std::string_view key, const Deadline& deadline) override {
    ++reads;
    return HashStore::get(key, deadline);
  }
  std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) override {
    reads += keys.size();
    return HashStore::multi_get(keys, deadline);
  }
  std::atomic<std::size_t> reads = 0;
};

// All but the last can take none, and so wait for nobody: no thread is needed for them.
TEST(ChooseBackend, ThousandsAgreeWithoutEachReadingAll) {
  constexpr int kRanks = 3000;
  GroupContext context = context_of(std::vector<std::string>(kRanks, "a"));
  const auto store = std::make_shared<CountingStore>();
  context.store = store;
  for (int rank = 0; rank < kRanks - 1; ++rank) {
    context.identity.rank = rank;
    const auto own =
        agree_on_reasons("backend", {{"x", "no x at " + std::to_string(rank)}}, context, Deadline::after(kPatience));
    ASSERT_EQ(own.front().why_not, "no x at " + std::to_string(rank));
  }
  EXPECT_EQ(store->reads, 0u);
  context.identity.rank = kRanks - 1;
  const auto last = agree_on_reasons("backend", {{"x", ""}}, context, Deadline::after(kPatience));
  EXPECT_EQ(last.front().why_not, "rank 0 (host on-a, pid 1): no x at 0");
  EXPECT_EQ(store->reads, kRanks + 1u) << "what all said, once, and the verdict";
}

TEST(ChooseBackend, RanksThatAskForDifferentOnesAreToldWho) {
  const GroupContext context = context_of({"a", "b"});
  std::vector<std::string> why(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&why, rank, own = context]() mutable {
      own.identity.rank = rank;
      const Reason mine{rank == 0 ? "x" : "y", ""};
      why[static_cast<std::size_t>(rank)] =
          agree_on_reasons("backend", {mine}, own, Deadline::after(kPatience)).front().why_not;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(why[0], "rank 1 (host on-b, pid 1): it asked for another backend");
  EXPECT_EQ(why[1], "rank 0 (host on-a, pid 1): it asked for another backend");
}

TEST(ChooseBackend, AVerdictThatIsNoneAndOneThatNeverCameAreSaid) {
  GroupContext context = context_of({"a", "b"});
  context.store->set("backend/verdict", "agreed 5:nobod");
  EXPECT_THAT(error_of<CorruptData>([&] {
                agree_on_reasons("backend", {{"x", ""}}, context, Deadline::after(kPatience));
              }),
              HasSubstr("backend/verdict"));
  context = context_of({"a", "b"});
  context.store->set("backend/1", "x\t\n");  // and then it died
  EXPECT_THAT(error_of<Timeout>([&] {
                agree_on_reasons("backend", {{"x", ""}}, context, Deadline::after(std::chrono::milliseconds(50)));
              }),
              HasSubstr("all 2 ranks came, but the last of them stopped"));
}

TEST(ChooseBackend, TheBuiltInOnesServeAnyNumberOfHosts) {
  EXPECT_EQ(choose_backend("auto", backends(), context_of({"a"}), Deadline::after(kPatience)).backend->name, "single");
  EXPECT_EQ(choose_backend("auto", backends(), context_of({"a", "a"}), Deadline::after(kPatience)).backend->name,
            "shm");
  EXPECT_EQ(choices_of_two("auto", backends(), backends()), (std::vector<std::string>{"tcp", "tcp"}));
  EXPECT_THROW(choose_backend("shm", backends(), context_of({"a", "b"}), Deadline::after(kPatience)),
               BackendUnavailable);
}

}  // namespace
}  // namespace lockstep::choose_backend_test
