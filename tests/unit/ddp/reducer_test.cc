// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "tests/support/error_of.h"
#include "tests/unit/ddp/fake_group.h"

namespace lockstep::reducer_test {
namespace {

using testing::error_of;
using testing::expect_text;
using testing::FakeWorld;
using testing::Started;
using testing::text_of;
using Group = std::shared_ptr<ProcessGroup>;

// Three buckets of two, in reverse order of registration: (f,e), (d,c), (b,a).
const std::vector<ParameterSpec> kSix{{"a", DType::f32, {16}}, {"b", DType::f32, {2, 8}}, {"c", DType::f32, {16}},
                                      {"d", DType::f32, {16}}, {"e", DType::f32, {3}},    {"f", DType::f32, {16}}};
const ReducerOptions kTwoEach{{.cap_bytes = 128, .first_cap_bytes = 128}};

void fill(Reducer& reducer, int parameter, float value) {
  float* gradient = reducer.gradient<float>(parameter);
  const auto count = reducer.parameters()[static_cast<std::size_t>(parameter)].count();
  for (std::int64_t i = 0; i < count; ++i) {
    gradient[i] = reducer.accumulating() ? gradient[i] + value : value;
  }
}

float first(Reducer& reducer, int parameter) { return *reducer.gradient<float>(parameter); }

// Writes `value` times the parameter's number plus one everywhere, last layer first.
void backward(Reducer& reducer, float value) {
  for (int p = static_cast<int>(reducer.parameters().size()) - 1; p >= 0; --p) {
    fill(reducer, p, value * static_cast<float>(p + 1));
    reducer.mark_ready(p);
  }
}

std::vector<Started> all_reduces(const FakeWorld& world, int rank) {
  std::vector<Started> result;
  for (const Started& call : world.started(rank)) {
    if (call.operation == "all_reduce") result.push_back(call);
  }
  return result;
}

TEST(Reducer, AWorldOfOneDividesOnceAndAsksNobody) {
  FakeWorld world(1);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    reducer.begin_step({.weight = 4});
    backward(reducer, 4.0f);
    EXPECT_EQ(reducer.finish_step(), 4);
    EXPECT_FLOAT_EQ(first(reducer, 2), 3.0f);
  });
  EXPECT_EQ(world.store().num_keys(), 0);
  EXPECT_EQ(world.started(0).size(), 3u);
}

TEST(Reducer, LaunchesInOneOrderWhateverIsReadyFirst) {
  FakeWorld world(4);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 5; ++step) {
      reducer.begin_step({.weight = 0, .synchronize = false});  // communicates nothing
      reducer.finish_step();
      std::vector<int> order(6);
      std::iota(order.begin(), order.end(), 0);
      Generator random(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(group->rank()));
      for (std::size_t i = 6; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
      reducer.begin_step({.weight = 1});
      for (const int p : order) {
        fill(reducer, p, static_cast<float>(p));
        reducer.mark_ready(p);
      }
      EXPECT_EQ(reducer.finish_step(), 4);
      for (int p = 0; p < 6; ++p) EXPECT_FLOAT_EQ(first(reducer, p), static_cast<float>(p));
    }
  });
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(world.started(rank), world.started(0)) << "rank " << rank;
  const auto calls = all_reduces(world, 0);
  ASSERT_EQ(calls.size(), 15u);
  EXPECT_EQ(world.started(0).size(), 18u) << "and one broadcast, of the order that rank 0 saw, behind the comparison";
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].offset, static_cast<std::ptrdiff_t>(i % 3 * 128)) << "call " << i;
    EXPECT_EQ(calls[i].weight, 1);
  }
}

// ---- misuse

void expect_says(const std::function<void()>& call, std::initializer_list<std::string_view> words) {
  expect_text(error_of(call), words);
}

TEST(Reducer, NamesParameterAndStepOfAMistakeAndGoesOn) {
  FakeWorld world(1);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    expect_says([&] { reducer.mark_ready("a"); }, {"mark_ready was called outside a step", "begin_step"});
    expect_says([&] { reducer.finish_step(); }, {"finish_step was called outside a step"});
    expect_says([&] { reducer.begin_step({.weight = -3}); }, {"step 0", "weight -3", "at least 0"});
    expect_says([&] { reducer.plan_order(std::vector<int>{0, 1, 2, 3, 4, 4}); }, {"4 again at position 5"});
    for (int step = 0; step < 2; ++step) {
      const std::string here = "step " + std::to_string(step);
      reducer.begin_step({.weight = 1});
      expect_says([&] { reducer.begin_step(); }, {"begin_step", here, "not finished"});
      fill(reducer, 5, 6.0f);
      reducer.mark_ready("f");
      expect_says([&] { reducer.mark_ready("f"); }, {"'f' float32 [16]", "second time", here});
      expect_says([&] { reducer.mark_ready("g"); }, {"'g'", here, "'a' to 'f'"});
      expect_says([&] { reducer.gradient<float>("g"); }, {"'g'", here});
      expect_says([&] { reducer.gradient<double>("b"); }, {"'b' float32 [2, 8]", "float64", here});
      expect_says([&] { reducer.mark_ready(6); }, {"index 6", here, "has 6 parameters"});
      expect_says([&] { reducer.gradient<float>(-1); }, {"index -1", here});
      EXPECT_EQ(reducer.finish_step(), 1);
      EXPECT_FLOAT_EQ(first(reducer, 5), 6.0f);
    }
    expect_says([&] { reducer.plan_order(std::vector<int>{0, 1, 2, 3, 4, 5}); }, {"plan_order", "before the first"});
  });
}

TEST(Reducer, RefusesWeightsThatOverflow) {
  FakeWorld world(1);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group);
    reducer.begin_step({.weight = INT64_MAX, .synchronize = false});
    reducer.finish_step();
    expect_says([&] { reducer.begin_step({.weight = 1}); }, {"weight 1", "9223372036854775807"});
  });
}

TEST(Reducer, RefusesToBeMadeOfNothing) {
  FakeWorld world(1);
  expect_says([&] { Reducer({}, world.group(0)); }, {"0 parameters"});
  expect_says([&] { Reducer(kSix, nullptr); }, {"process group is null"});
}

// ---- failures

// Every rank's words, for a body that is expected to throw on each.
std::vector<std::string> errors_of(FakeWorld& world, const std::function<void(const Group&)>& body) {
  std::vector<std::string> texts;
  for (const std::exception_ptr& error : world.run_catching(body)) texts.push_back(text_of(error));
  return texts;
}

void expect_mismatch(FakeWorld& world, const std::function<std::vector<ParameterSpec>(int rank)>& specs_of,
                     const std::string& words) {
  const auto texts = errors_of(world, [&](const Group& group) { Reducer(specs_of(group->rank()), group, kTwoEach); });
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts[0]);
    EXPECT_TRUE(text.starts_with("Mismatch: Reducer: ")) << text;
    expect_text(text, {words});
  }
}

TEST(Reducer, NamesTheFirstParameterThatDiffersAndTheRanks) {
  const auto with = [](int differs, ParameterSpec other) {
    return [=](int rank) {
      auto specs = kSix;
      if (rank == differs) specs[2] = specs[4] = other;
      if (rank == differs) specs[4].name += "'";
      return specs;
    };
  };
  for (const int culprit : {0, 1, 3}) {
    FakeWorld shape(4), name(4), dtype(4);
    const std::string who = "rank " + std::to_string(culprit) + " has ";
    expect_mismatch(shape, with(culprit, {"c", DType::f32, {17}}), who + "'c' float32 [17]");
    expect_mismatch(name, with(culprit, {"cc", DType::f32, {16}}), who + "'cc' float32 [16]");
    expect_mismatch(dtype, with(culprit, {"c", DType::bf16, {16}}), who + "'c' bfloat16 [16]");
  }
  FakeWorld world(4);
  expect_mismatch(world, with(2, {"c", DType::f32, {4, 4}}),
                  "parameter 2: ranks 0, 1 and 3 have 'c' float32 [16]; rank 2 has 'c' float32 [4, 4]");
}

TEST(Reducer, NamesTheRanksWithFewerParameters) {
  FakeWorld world(3);
  expect_mismatch(
      world,
      [](int rank) {
        auto specs = kSix;
        if (rank > 0) specs.pop_back();
        return specs;
      },
      "parameter 5: rank 0 has 'f' float32 [16]; ranks 1 and 2 have only 5 parameters");
}

TEST(Reducer, TellsWhenOptionsDiffer) {
  FakeWorld world(2);
  const auto texts = errors_of(world, [](const Group& group) {
    Reducer reducer(kSix, group, {{.cap_bytes = 1000u + static_cast<std::size_t>(group->rank())}});
  });
  for (const std::string& text : texts) {
    expect_text(text,
                {"the bucket options: rank 0 has cap_bytes 1000, first_cap_bytes 1048576; rank 1 has cap_bytes 1001"});
  }
}

TEST(Reducer, WaitsForRanksThatMakeNoneAsInACollective) {
  FakeWorld world(3, std::chrono::milliseconds(300));
  const auto texts = errors_of(world, [](const Group& group) {
    if (group->rank() == 0) Reducer(kSix, group);
  });
  expect_text(texts[0], {"Timeout: fake group: all_gather of 1 int64, elapsed"});
}

TEST(Reducer, WaitsForNobodyInAGroupThatHasFailed) {
  FakeWorld world(2, std::chrono::minutes(10));
  const auto texts = errors_of(world, [](const Group& group) {
    if (group->rank() == 1) throw InvalidArgument("no model");
    Reducer(kSix, group);
  });
  EXPECT_EQ(texts[0], "PeerLost: rank 1 threw");
}

TEST(Reducer, AFailedGroupGoesBeforeMisuse) {
  FakeWorld world(1);
  const Group group = world.group(0);
  Reducer reducer(kSix, group, kTwoEach);
  reducer.begin_step();
  group->abort("rank 7 died");
  EXPECT_THROW(reducer.begin_step(), PeerLost);
  EXPECT_THROW(reducer.finish_step(), PeerLost);
}

TEST(Reducer, AStepWithoutCommunicationNoticesAFailedGroup) {
  FakeWorld world(1);
  const Group group = world.group(0);
  Reducer reducer(kSix, group, kTwoEach);
  group->abort("rank 7 died");
  EXPECT_THROW(reducer.begin_step({.synchronize = false}), PeerLost);
}

}  // namespace
}  // namespace lockstep::reducer_test
