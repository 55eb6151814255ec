#include "runtime/comm/init/choose_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Backend backend(std::string name, std::string why_not) {
  return {.name = std::move(name), .why_not = [why_not](const GroupContext&) { return why_not; }, .create = {}};
}

GroupContext context_of(std::vector<std::string> boot_ids) {
  GroupContext context;
  for (std::size_t i = 0; i < boot_ids.size(); ++i) {
    context.roster.push_back(
        {.rank = static_cast<int>(i), .local_rank = 0, .pid = 1, .host = "on-" + boot_ids[i], .boot_id = boot_ids[i]});
  }
  return context;
}

template <typename E, typename Body>
std::string refusal(Body body) {
  try {
    body();
    ADD_FAILURE() << "accepted";
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

TEST(ChooseBackend, AutoTakesTheFirstThatCanAndSaysWhyNotTheOthers) {
  const std::vector<Backend> candidates = {backend("one", "one is full; empty it"), backend("two", ""),
                                           backend("three", "")};
  const BackendChoice choice = choose_backend("auto", candidates, context_of({"a", "a"}));
  EXPECT_EQ(choice.backend->name, "two");
  EXPECT_EQ(choice.why, "auto; one is full");
  EXPECT_EQ(choose_backend("three", candidates, context_of({"a"})).backend->name, "three");
}

TEST(ChooseBackend, AskedForIsNeverReplaced) {
  const std::vector<Backend> candidates = {backend("one", "one is full; empty it"), backend("two", "")};
  EXPECT_THAT(refusal<BackendUnavailable>([&] { choose_backend("one", candidates, context_of({"a"})); }),
              HasSubstr("backend 'one' was asked for: one is full; empty it"));
}

TEST(ChooseBackend, NcclAndItsLikeAreRefusedInOneSentence) {
  const std::vector<Backend> candidates = {backend("single", ""), backend("shm", "")};
  for (const char* name : {"nccl", "gloo", "mpi"}) {
    EXPECT_THAT(refusal<BackendUnavailable>([&] { require_known_backend(name, candidates); }),
                AllOf(HasSubstr("backend '" + std::string(name) + "'"), HasSubstr("auto, single, shm")));
  }
  EXPECT_THAT(refusal<InvalidArgument>([&] { require_known_backend("smh", candidates); }),
              AllOf(HasSubstr("'smh' is unknown"), HasSubstr("auto, single, shm")));
  EXPECT_NO_THROW(require_known_backend("auto", candidates));
  EXPECT_NO_THROW(require_known_backend("shm", candidates));
}

TEST(ChooseBackend, RanksOnSeveralHostsAreRefusedInOneSentence) {
  const std::vector<Backend> candidates = {backend("shm", "not here; elsewhere")};
  EXPECT_THAT(refusal<BackendUnavailable>([&] {
                choose_backend("auto", candidates, context_of({"a", "a", "b"}));
              }),
              AllOf(HasSubstr("2 hosts (on-a: ranks 0 and 1; on-b: rank 2)"), HasSubstr("start all ranks on one")));
  EXPECT_THAT(refusal<BackendUnavailable>([&] {
                choose_backend("auto", candidates, context_of({"a", "a"}));
              }),
              AllOf(HasSubstr("2 ranks"), HasSubstr("not here")));
}

TEST(ChooseBackend, TheBuiltInOnesServeOneHostOnly) {
  EXPECT_EQ(choose_backend("auto", backends(), context_of({"a"})).backend->name, "single");
  EXPECT_EQ(choose_backend("auto", backends(), context_of({"a", "a"})).backend->name, "shm");
  EXPECT_THROW(choose_backend("auto", backends(), context_of({"a", "b"})), BackendUnavailable);
  EXPECT_THROW(choose_backend("shm", backends(), context_of({"a", "b"})), BackendUnavailable);
}

}  // namespace
}  // namespace lockstep
