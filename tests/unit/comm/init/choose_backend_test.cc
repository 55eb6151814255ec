// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/choose_backend.h"

#include <gtest/gtest.h>

#include <array>

#include "lockstep/base/error.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/on_threads.h"

namespace lockstep::choose_backend_test {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::error_of;
using lockstep::testing::expect_message;
using lockstep::testing::on_threads;

constexpr std::chrono::seconds kPatience{40};

Backend backend(std::string name, std::string why_not = "") {
  return {.name = std::move(name),
          .why_not = [why_not](const GroupContext&) { return why_not; },
          .create = {},
          .must_agree = false};
}
Backend plug_in(std::string name, std::string why_not = "") {
  Backend result = backend(std::move(name), std::move(why_not));
  result.must_agree = true;
  return result;
}

GroupContext context_of(std::vector<std::string> boot_ids, DeviceId device = {}) {
  GroupContext context;
  context.store = std::make_shared<store::HashStore>();
  context.device = device;
  for (std::size_t i = 0; i < boot_ids.size(); ++i) {
    context.roster.push_back(
        {.rank = static_cast<int>(i), .local_rank = 0, .pid = 1, .host = "on-" + boot_ids[i], .boot_id = boot_ids[i]});
  }
  return context;
}

// The name of the choice, or the message of the error.
std::string choice_of(std::string_view name, std::span<const Backend> candidates, const GroupContext& context,
                      Deadline::Duration patience = kPatience) {
  try {
    return choose_backend(name, candidates, context, Deadline::after(patience)).backend->name;
  } catch (const BackendUnavailable& error) {
    return error.what();
  }
}

TEST(ChooseBackend, AutoTakesTheFirstThatCanAndWhatIsAskedForIsNeverReplaced) {
  const std::vector<Backend> three = {backend("one", "one is full; empty it"), backend("two"), backend("three")};
  std::vector<Backend> of_devices = {backend("cpus"), backend("gpus")};
  of_devices[1].device = DeviceKind::cuda;
  const DeviceId gpu{DeviceKind::cuda, 2};
  EXPECT_EQ(choose_backend("auto", three, context_of({"a", "a"}), Deadline::after(kPatience)).why, "auto; one is full");
  EXPECT_EQ(choice_of("auto", three, context_of({"a", "a"})), "two");
  EXPECT_EQ(choice_of("three", three, context_of({"a"})), "three");
  EXPECT_EQ(choice_of("auto", of_devices, context_of({"a"})), "cpus");
  EXPECT_EQ(choice_of("auto", of_devices, context_of({"a"}, gpu)), "gpus");
  expect_message("comm", "asked for", choice_of("one", three, context_of({"a"})));
  expect_message("comm", "gpus on a CPU", choice_of("gpus", of_devices, context_of({"a"})));
  expect_message("comm", "cpus on a GPU", choice_of("cpus", of_devices, context_of({"a"}, gpu)));
  const std::vector<Backend> none = {backend("shm", "not here; elsewhere")};
  expect_message("comm", "none for two hosts", choice_of("auto", none, context_of({"a", "a", "b"})));
  expect_message("comm", "none for one host", choice_of("auto", none, context_of({"a", "a"})));
}

TEST(ChooseBackend, PyTorchsNameForTcpIsUnderstoodAndUnknownNamesAreRefused) {
  const std::vector<Backend> candidates = {backend("shm"), backend("tcp")};
  for (const char* name : {"auto", "shm", "gloo"}) EXPECT_NO_THROW(require_known_backend(name, candidates));
  EXPECT_EQ(choice_of("gloo", candidates, context_of({"a"})), "tcp");
  for (const char* name : {"nccl", "ucc"}) {
    expect_message("comm", name, error_of<BackendUnavailable>([&] { require_known_backend(name, candidates); }));
  }
  expect_message("comm", "unknown", error_of([&] { require_known_backend("smh", candidates); }));
  expect_message("comm", "of a variable",
                 error_of([&] { require_known_backend("smh", candidates, "environment: LOCKSTEP_BACKEND"); }));
}

// Rank 0, which hosts the store, had the same reason and was faster to say so.
TEST(ChooseBackend, WhatThisRankMissesIsSaidWhateverBecameOfTheStore) {
  class Lost : public store::HashStore {
   public:
    void set(std::string_view, std::string_view) override { throw PeerLost("rank 0 failed"); }
  };
  GroupContext context = context_of({"a", "a"});
  context.store = std::make_shared<Lost>();
  const std::array missing = {plug_in("plugin", "its file is missing; install it")};
  expect_message("comm", "missing", choice_of("plugin", missing, context));
  const std::array here = {plug_in("plugin")};
  EXPECT_THROW(choice_of("plugin", here, context), PeerLost);
}

struct Wish {
  std::string name;
  std::vector<Backend> candidates;
};
// What rank 0 and rank 1, on two hosts, choose.
std::array<std::string, 2> choices_of_two(const Wish& of_rank_0, const Wish& of_rank_1) {
  std::array<std::string, 2> results;
  const GroupContext context = context_of({"a", "b"});
  on_threads(2, [&](int rank) {
    GroupContext own = context;
    own.identity.rank = rank;
    const Wish& wish = rank == 0 ? of_rank_0 : of_rank_1;
    results[static_cast<std::size_t>(rank)] = choice_of(wish.name, wish.candidates, own);
  });
  return results;
}

TEST(ChooseBackend, APlugInIsTakenOnlyIfEveryRankHasIt) {
  using Names = std::array<std::string, 2>;
  const Backend here = backend("one", "one host only; elsewhere");
  const Backend no_x = plug_in("x", "x is missing; install it");
  const std::vector<Backend> both = {here, plug_in("x"), plug_in("y")}, second_only = {here, no_x, plug_in("y")};
  EXPECT_EQ(choices_of_two({"auto", both}, {"auto", both}), (Names{"x", "x"}));
  EXPECT_EQ(choices_of_two({"auto", both}, {"auto", second_only}), (Names{"y", "y"}));
  // Else a rank that knows of what is built in would not wait for those that may have the plug-in.
  const Wish with_x{"auto", {plug_in("x"), backend("built in")}}, without_x{"auto", {no_x, backend("built in")}};
  EXPECT_EQ(choices_of_two(with_x, with_x), (Names{"x", "x"}));
  EXPECT_EQ(choices_of_two(without_x, with_x), (Names{"built in", "built in"}));
  EXPECT_EQ(choices_of_two({"auto", backends()}, {"auto", backends()}), (Names{"tcp", "tcp"}));

  const std::vector<Backend> none = {here, no_x, plug_in("y", "y too; buy it")};
  const auto expect_messages = [](const std::string& what, const Names& said) {
    expect_message("comm", what + ", rank 0", said[0]);
    expect_message("comm", what + ", rank 1", said[1]);
  };
  expect_messages("no plug-in of both", choices_of_two({"auto", both}, {"auto", none}));
  expect_messages("rank 0 has no x", choices_of_two({"x", second_only}, {"x", both}));
  expect_messages("x and y", choices_of_two({"x", both}, {"y", both}));
}

TEST(AnnounceBackend, RefusesAnotherThanTheFirst) {
  GroupContext context = context_of({"a", "b"});
  announce_backend("tcp", context);
  context.identity.rank = 1;
  announce_backend("gloo", context);  // the same
  announce_backend("tcp", context);
  for (const char* name : {"shm", "tcp2", "t"}) {
    expect_message("comm", name, error_of<Mismatch>([&] { announce_backend(name, context); }));
  }
}

TEST(ChooseBackend, TheBuiltInOnesServeAnyNumberOfRanks) {
  EXPECT_EQ(choice_of("auto", backends(), context_of({"a"})), "single");
  EXPECT_EQ(choice_of("auto", backends(), context_of({"a", "a"})), "shm");
  EXPECT_THROW(choose_backend("shm", backends(), context_of({"a", "b"}), Deadline::after(kPatience)),
               BackendUnavailable);
}

TEST(ChooseBackend, AnAgreementThatIsNotReachedSaysWhoIsMissing) {
  const std::array candidates = {plug_in("x")};
  const auto timeout_of = [&](const GroupContext& context) {
    return error_of<Timeout>([&] { choice_of("auto", candidates, context, 50ms); });
  };
  GroupContext context = context_of({"a", "b"});
  expect_message("comm", "rank 1", timeout_of(context));
  context = context_of({"a", "b"});
  context.store->set("backend/1", "x\t\n");  // and then it died
  expect_message("comm", "the verdict", timeout_of(context));
  context.store->set("backend/verdict", "agreed 5:nobod");
  expect_message("comm", "a verdict that is none",
                 error_of<CorruptData>([&] { choice_of("auto", candidates, context); }));
}

}  // namespace
}  // namespace lockstep::choose_backend_test
