// SPDX-License-Identifier: Apache-2.0
// The whole text of each message by which a group of any backend fails: one test each, and the other tests look at
// causes. Ranks as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <latch>
#include <limits>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "tests/conformance/errors.h"
#include "tests/support/cause_of.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using Group = std::shared_ptr<ProcessGroup>;

constexpr bool kIsNccl = std::string_view(LOCKSTEP_TEST_BACKEND) == "nccl";

// What rank 0 of two is told; rank 1 may wait for that to be `said`.
template <typename Expected>
std::string text_on_rank_0(const std::function<void(ProcessGroup&)>& on_rank_0,
                           const std::function<void(const Group&, std::latch& said)>& on_rank_1) {
  std::string text;
  std::latch said(1);
  const auto body = [&](const Group& group) {
    if (group->rank() == 1) return on_rank_1(group, said);
    text = golden(error_of<Expected>([&] { on_rank_0(*group); }));
    said.count_down();
  };
  try {
    run_ranks(2, body);
  } catch (const InvalidArgument&) {  // of rank 1, where it is to throw
  }
  return text;
}

TEST(GoldenMessages, CallsThatDiffer) {
  std::array<std::string, 2> texts;
  run_ranks(2, [&](const Group& group) {
    std::vector<float> x(10);
    group->barrier().wait();
    texts[static_cast<std::size_t>(group->rank())] = golden(error_of<Mismatch>(
        [&] { (group->rank() == 0 ? group->broadcast(view(x), 1) : group->all_reduce(view(x))).wait(); }));
  });
  const std::string every = "; every rank must call the same operations in the same order with equal sizes and types";
  const std::string first = "rank 0 (...) called broadcast (from rank 1, 10 x float32)";
  const std::string second = "rank 1 (...) called all_reduce (sum, 10 x float32)";
  // Whichever rank sees it first says it for both, itself first.
  EXPECT_THAT(texts[0], AnyOf("collective 2: " + first + ", but " + second + every,
                              "collective 2: " + second + ", but " + first + every));
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(GoldenMessages, WeightsThatAreTooMuch) {
  run_ranks(2, [](const Group& group) {
    std::vector<float> x(10);
    const std::int64_t weight = group->rank() == 0 ? 7 : std::numeric_limits<std::int64_t>::max();
    EXPECT_EQ(golden(error_of<Mismatch>([&] { group->all_reduce(view(x), {.weight = weight}).wait(); })),
              "all_reduce 1 (weighted sum, 10 x float32): the weights add up to more than 2^63 - 1: 7 of rank 0 (...), "
              "9223372036854775807 of rank 1 (...); a weight is a number of samples or of loss terms");
  });
}

TEST(GoldenMessages, WhatTimesOut) {
  const auto stay_away = [](const Group&, std::latch& said) { said.wait(); };
  const auto collective = [](ProcessGroup& group) {
    std::vector<float> x(1000);
    group.all_reduce(view(x)).wait(Deadline::after(300ms));
  };
  EXPECT_EQ(text_on_rank_0<Timeout>(collective, stay_away),
            std::string("all_reduce 1 (sum, 1000 x float32) on rank 0 (...) timed out, elapsed T s of 0.3 s; not "
                        "arrived: rank 1 (...)") +
                (kIsNccl ? ", which started nothing last" : "") + "; see why it is late, or raise the timeout");
  const auto message = [](ProcessGroup& group) {
    std::vector<float> x(20);
    group.recv(view(x), 1).wait(Deadline::after(300ms));
  };
  EXPECT_EQ(text_on_rank_0<Timeout>(message, stay_away),
            std::string("recv of 20 x float32 from rank 1 with tag 0 on rank 0 (...) timed out, elapsed T s of 0.3 s; "
                        "rank 1 (...) has not ") +
                (kIsNccl ? "called its part, or waits for something that comes before it" : "started the other half") +
                "; see why it is late, or raise the timeout");
}

TEST(GoldenMessages, ARankThatLeft) {
  const auto leave = [](const Group& group, std::latch&) { group->barrier().wait(); };
  EXPECT_EQ(
      text_on_rank_0<PeerLost>(two_barriers, leave),
      "rank 1 (...) left after collective 1; rank 0 (...) is in barrier 2, which needs every rank: all ranks must "
      "take part in the same collectives");
  const auto message = [](ProcessGroup& group) {
    std::vector<float> x(20);
    group.barrier().wait();
    group.recv(view(x), 1).wait();
  };
  EXPECT_EQ(
      text_on_rank_0<PeerLost>(message, leave),
      "rank 1 (...) left after collective 1; rank 0 (...) waits for its recv of 20 x float32 from rank 1 with tag "
      "0");
}

TEST(GoldenMessages, ARankThatThrew) {
  const auto fail = [](const Group& group, std::latch&) {
    group->barrier().wait();
    throw InvalidArgument("bad text file");
  };
  EXPECT_EQ(text_on_rank_0<PeerLost>(two_barriers, fail),
            "rank 1 (...) was ended by an exception of its own after collective 1; its own message says more");
}

TEST(GoldenMessages, AGroupDestroyedWithWorkUnderWay) {
  std::latch destroyed(1);
  std::string text;
  run_ranks(2, [&](Group group) {
    std::vector<float> x(10);
    if (group->rank() == 1) {
      const Work work = group->all_reduce(view(x));
      group.reset();
      return destroyed.count_down();
    }
    destroyed.wait();
    text = golden(error_of<PeerLost>([&] { group->all_reduce(view(x)).wait(); }));
  });
  EXPECT_EQ(text,
            "rank 1 (...) destroyed its group with 1 collectives and 0 messages under way; it must wait for each work "
            "first");
}

TEST(GoldenMessages, AGroupWithinTheGroupIsNamedInFront) {
  run_ranks(2, [](const Group& group) {
    const Group part = group->new_group({1, 0}, {.name = "part"});
    if (group->rank() == 1) part->abort("the disk is full");
    EXPECT_EQ(error_of<PeerLost>([&] { two_barriers(*part); }), "group 'part' (ranks 0 and 1): the disk is full");
  });
}

}  // namespace
}  // namespace lockstep::testing
