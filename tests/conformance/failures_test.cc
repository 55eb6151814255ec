// SPDX-License-Identifier: Apache-2.0
// How a group fails: every rank gets the first cause, typed, at once, and for good. Ranks as threads.
//
// The whole texts of what every backend says alike are here, and nowhere else: the rank that said it is the reporter.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>
#include <string_view>
#include <thread>

#include "lockstep/base/error.h"
#include "tests/conformance/errors.h"
#include "tests/conformance/memory.h"
#include "tests/support/cause_of.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing::failures_test {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

constexpr bool kIsNccl = std::string_view(LOCKSTEP_TEST_BACKEND) == "nccl";

std::string who(int rank) { return "rank " + std::to_string(rank) + " (...)"; }

TEST(Failures, DifferentOperationsAreAMismatchOnEveryRank) {
  std::array<Cause, 3> causes;
  run_ranks(3, [&](const Group& group) {
    std::vector<float> x(10);
    const auto rank = static_cast<std::size_t>(group->rank());
    causes[rank] = cause_of<Mismatch>([&] {
      group->barrier().wait();
      if (rank == 2) group->broadcast(view(x), 1).wait();
      group->all_reduce(view(x)).wait();
    });
    EXPECT_EQ(cause_of<Mismatch>([&] { group->barrier().wait(); }), causes[rank]) << "not sticky";
    EXPECT_EQ(cause_of<Mismatch>([&] { group->progress(); }), causes[rank]);
    EXPECT_EQ(cause_of<Mismatch>([&] { group->allocate(64); }), causes[rank]);
    EXPECT_EQ(cause_of<Mismatch>([&] { return group->send(view(x), 0); }), causes[rank]);
  });
  expect_one_cause(causes, {.kind = Cause::Kind::mismatch, .sequence = 2});
  // Compares its own with what the others called, in their order.
  const int reporter = causes[0].reporter;
  const auto called = [](int rank) {
    return who(rank) + " called " +
           (rank == 2 ? "broadcast (from rank 1, 10 x float32)" : "all_reduce (sum, 10 x float32)");
  };
  EXPECT_EQ(golden(causes[0].text),
            "collective 2: " + called(reporter) + ", but " + called(reporter == 2 ? 0 : 2) +
                "; every rank must call the same operations in the same order with equal sizes and types");
}

TEST(Failures, EachFieldOfAnOperationIsCompared) {
  using Call = std::function<void(ProcessGroup&, std::vector<float>&)>;
  constexpr std::size_t kUnits = 3;
  const auto with_a_note_of = [](NoteOp op) {
    return [op](auto& g, auto& x) { g.all_reduce(view(x), {.note = {{op, 1}}}).wait(); };
  };
  const std::pair<Call, Call> pairs[] = {
      {[](auto& g, auto& x) { g.all_reduce(view(x)).wait(); },
       [](auto& g, auto& x) { x.resize(9), g.all_reduce(view(x)).wait(); }},
      {[](auto& g, auto& x) { g.all_reduce(view(x)).wait(); },
       [](auto& g, auto& x) { g.all_reduce(view(x), {.op = ReduceOp::max}).wait(); }},
      {[](auto& g, auto& x) { g.all_reduce(view(x)).wait(); },
       [](auto& g, auto& x) { g.all_reduce(view(x), {.weight = 1}).wait(); }},
      {[](auto& g, auto& x) { g.all_reduce(view(x), {.weight = 1}).wait(); },
       [](auto& g, auto& x) { g.all_reduce(view(x), {.weight = 1, .unit = 2}).wait(); }},
      {[](auto& g, auto& x) { g.all_reduce(view(x)).wait(); },
       [](auto& g, auto& x) { g.all_reduce(BufferView(x.data(), 10, DType::i32)).wait(); }},
      {with_a_note_of(NoteOp::sum), with_a_note_of(NoteOp::any)},
      {[](auto& g, auto& x) { g.broadcast(view(x), 0).wait(); },
       [](auto& g, auto& x) { g.broadcast(view(x), 1).wait(); }},
      {[](auto& g, auto&) { g.allocate(100); }, [](auto& g, auto&) { g.allocate(200); }},
      {[](auto& g, auto&) { g.barrier().wait(); }, [](auto& g, auto& x) { x.clear(), g.all_reduce(view(x)).wait(); }},
  };
  for (const auto& pair : pairs) {
    // Units of weights are for groups on the CPU.
    if (&pair == &pairs[kUnits] && kIsNccl) continue;
    run_ranks(2, [&](const Group& group) {
      std::vector<float> x(10);
      error_of<Mismatch>([&] { (group->rank() == 0 ? pair.first : pair.second)(*group, x); });
    });
  }
}

TEST(Failures, WeightsThatAddUpToTooMuchAreAMismatch) {
  run_ranks(3, [](const Group& group) {
    std::vector<float> x(10);
    const std::int64_t weight = group->rank() == 0 ? 7 : std::int64_t{1} << 62;
    expect_golden(cause_of<Mismatch>([&] { group->all_reduce(view(x), {.weight = weight}).wait(); }),
                  {.kind = Cause::Kind::mismatch,
                   .sequence = 1,
                   .text = "all_reduce 1 (weighted sum, 10 x float32): the weights add up to more than 2^63 - 1: 7 of "
                           "rank 0 (...), 4611686018427387904 of rank 1 (...), 4611686018427387904 of rank 2 (...); a "
                           "weight is a number of samples or of loss terms"});
  });
}

TEST(Failures, ATimeoutNamesWhoDidNotArrive) {
  std::latch come(3);
  std::latch over(3);
  run_ranks(4, [&](const Group& group) {
    if (group->rank() == 2) return over.wait();  // does not come before the others have given up
    std::vector<float> x(1000);
    Work work = group->all_reduce(view(x));
    EXPECT_FALSE(work.done());
    come.arrive_and_wait();  // who got no core until now has come too, and over a wire its word is on the way
    const Cause cause = cause_of<Timeout>([&] { work.wait(Deadline::after(1s)); });
    expect_golden(cause, {.kind = Cause::Kind::timeout,
                          .rank = 2,
                          .sequence = 1,
                          .text = "all_reduce 1 (sum, 1000 x float32) on " + who(cause.reporter) +
                                  " timed out, elapsed T s of 1 s; not arrived: rank 2 (...)" +
                                  (kIsNccl ? ", which started nothing last" : "") +
                                  "; see why it is late, or raise the timeout"});
    EXPECT_EQ(cause_of<Timeout>([&] { group->barrier().wait(); }), cause);
    over.count_down();
  });
}

TEST(Failures, TheGroupsTimeoutIsTheDefault) {
  std::latch over(1);
  run_ranks(2,
            [&](const Group& group) {
              if (group->rank() == 1) return over.wait();
              error_of<Timeout>([&] { group->barrier().wait(); });
              over.count_down();
            },
            {.timeout = 300ms});
}

TEST(Failures, WhoReturnsEarlyIsNamedAtOnce) {
  run_ranks(3, [](const Group& group) {
    std::vector<float> x(100000);
    const auto five_steps = [&] {
      for (int step = 0; step < 5; ++step) group->all_reduce(view(x)).wait();
    };
    if (group->rank() == 1) return five_steps();
    const Cause cause = cause_of<PeerLost>([&] {
      five_steps();
      group->all_reduce(view(x)).wait();
    });
    expect_golden(cause, {.kind = Cause::Kind::left,
                          .rank = 1,
                          .sequence = 6,
                          .text = "rank 1 (...) left after collective 5; " + who(cause.reporter) +
                                  " is in all_reduce 6 (sum, 100000 x float32), which needs every rank: all ranks must "
                                  "take part in the same collectives"});
  });
}

TEST(Failures, LeavingTogetherIsNoFailure) {
  for (int round = 0; round < 50; ++round) {
    run_ranks(4, [&](const Group& group) {
      std::vector<float> x(static_cast<std::size_t>(round * 100));
      // Nobody waits for anybody after the last collective.
      group->all_reduce(view(x)).wait();
    });
  }
}

TEST(Failures, AnExceptionOfOneRankReachesTheOthers) {
  const auto body = [](const Group& group) {
    if (group->rank() == 1) {
      group->barrier().wait();
      throw InvalidArgument("bad text file");
    }
    expect_golden(cause_of<PeerLost>([&] { two_barriers(*group); }),
                  {.kind = Cause::Kind::failed,
                   .rank = 1,
                   .reporter = 1,
                   .sequence = 1,
                   .text = "rank 1 (...) ended with an exception after collective 1: see its own output"});
  };
  EXPECT_EQ(error_of<InvalidArgument>([&] { run_ranks(3, body); }), "rank 1: bad text file");
}

TEST(Failures, AbortFromAnyThreadEndsAWait) {
  std::latch waiting(1);
  std::latch over(1);
  run_ranks(2, [&](const Group& group) {
    if (group->rank() == 1) {
      over.wait();
      // Rank 0 had come to the barrier, so the first may be done before the news is here; it never comes to another.
      EXPECT_EQ(error_of<PeerLost>([&] { two_barriers(*group); }), "the disk is full");
      return;
    }
    std::thread other([&] {
      waiting.wait();
      group->abort("the disk is full");
      group->abort("a later cause");
    });
    Work work = group->barrier();
    waiting.count_down();
    EXPECT_EQ(error_of<PeerLost>([&] { work.wait(); }), "the disk is full");
    EXPECT_EQ(error_of<PeerLost>([&] { work.done(); }), "the disk is full");
    other.join();
    over.count_down();
  });
}

TEST(Failures, DestroyedWithWorkUnderWay) {
  std::latch destroyed(1);
  run_ranks(2, [&](Group group) {
    std::vector<float> x(10);
    if (group->rank() == 0) {
      Work work = group->all_reduce(view(x));
      group.reset();
      destroyed.count_down();
      error_of<PeerLost>([&] { work.wait(); });
      return;
    }
    destroyed.wait();
    expect_golden(cause_of<PeerLost>([&] { group->all_reduce(view(x)).wait(); }),
                  {.kind = Cause::Kind::failed,
                   .rank = 0,
                   .sequence = 1,
                   .text = "rank 0 (...) destroyed its group with 1 collectives and 0 messages under way; it must wait "
                           "for each work first"});
  });
}

TEST(Failures, AWorkMayOutliveItsGroupOnceItIsDone) {
  run_ranks(2, [](Group group) {
    std::vector<float> x(10, 1);
    Arena arena = group->allocate(4096);
    const StreamView stream = group->stream();
    Work done = group->all_reduce(view(x));
    done.wait();
    group.reset();
    EXPECT_TRUE(done.done());
    done.wait();
    const std::byte one{1};  // memory outlives the group too
    upload(stream, arena.data + 4095, std::span(&one, 1));
  });
}

TEST(Failures, AMessageFromOrToARankThatLeft) {
  run_ranks(3, [](const Group& group) {
    std::vector<float> x(20);
    if (group->rank() == 2) return group->barrier().wait();
    const Cause cause = cause_of<PeerLost>([&] {
      group->barrier().wait();
      if (group->rank() == 0) group->recv(view(x), 2).wait();
      group->send(view(x), 2).wait();
    });
    expect_golden(cause, {.kind = Cause::Kind::left,
                          .rank = 2,
                          .text = "rank 2 (...) left after collective 1; " + who(cause.reporter) + " waits for its " +
                                  (cause.reporter == 0 ? "recv of 20 x float32 from" : "send of 20 x float32 to") +
                                  " rank 2 with tag 0"});
  });
}

TEST(Failures, AMessageThatNobodySendsTimesOut) {
  std::latch over(1);
  run_ranks(2, [&](const Group& group) {
    std::vector<float> x(20);
    if (group->rank() == 1) return over.wait();
    Work work = group->recv(view(x), 1);
    expect_golden(
        cause_of<Timeout>([&] { work.wait(Deadline::after(100ms)); }),
        {.kind = Cause::Kind::timeout,
         .rank = 1,
         .text = std::string("recv of 20 x float32 from rank 1 with tag 0 on rank 0 (...) timed out, elapsed T "
                             "s of 0.1 s; rank 1 (...) has not ") +
                 (kIsNccl ? "called its part, or waits for something that comes before it" : "started the other half") +
                 "; see why it is late, or raise the timeout"});
    over.count_down();
  });
}

}  // namespace
}  // namespace lockstep::testing::failures_test
