// How a group fails: every rank gets the first cause, typed, at once, and for good. Ranks as threads.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <fstream>
#include <latch>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/host.h"
#include "runtime/comm/shm/memory_limit.h"
#include "runtime/comm/shm/process_group_shm.h"
#include "runtime/store/hash_store.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

// The text of the error that `call` throws, which must be of this type.
template <typename Expected, typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string("another error than expected: ") + error.what());
  }
  throw std::runtime_error("no error at all");
}

void expect_text(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

BufferView view(std::vector<float>& values) { return BufferView(std::span(values)); }

TEST(Failures, DifferentOperationsAreAMismatchOnEveryRank) {
  std::array<std::string, 3> texts;
  run_ranks(3, [&](const Group& group) {
    std::vector<float> x(10);
    const auto rank = static_cast<std::size_t>(group->rank());
    texts[rank] = error_of<Mismatch>([&] {
      group->barrier().wait();
      if (rank == 2) group->broadcast(view(x), 1).wait();
      group->all_reduce(view(x)).wait();
    });
    EXPECT_EQ(error_of<Mismatch>([&] { group->barrier().wait(); }), texts[rank]) << "not sticky";
    EXPECT_EQ(error_of<Mismatch>([&] { group->progress(); }), texts[rank]);
    EXPECT_EQ(error_of<Mismatch>([&] { group->allocate(64); }), texts[rank]);
    EXPECT_EQ(error_of<Mismatch>([&] { group->send(view(x), 0); }), texts[rank]);
  });
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
  expect_text(texts[0], {"collective 2", "rank 2", "broadcast (from rank 1, 10 x float32)",
                         "all_reduce (sum, 10 x float32)", "same order"});
}

TEST(Failures, EachFieldOfAnOperationIsCompared) {
  using Call = std::function<void(ProcessGroup&, std::vector<float>&)>;
  const std::pair<Call, Call> pairs[] = {
      {[](auto& g, auto& x) { g.all_reduce(view(x)).wait(); },
       [](auto& g, auto& x) { x.resize(9), g.all_reduce(view(x)).wait(); }},
      {[](auto& g, auto& x) { g.all_reduce(view(x)).wait(); },
       [](auto& g, auto& x) { g.all_reduce(view(x), {.op = ReduceOp::max}).wait(); }},
      {[](auto& g, auto& x) { g.all_reduce(view(x)).wait(); },
       [](auto& g, auto& x) { g.all_reduce(view(x), {.weight = 1}).wait(); }},
      {[](auto& g, auto& x) { g.all_reduce(view(x)).wait(); },
       [](auto& g, auto& x) { g.all_reduce(BufferView(x.data(), 10, DType::i32)).wait(); }},
      {[](auto& g, auto& x) { g.broadcast(view(x), 0).wait(); },
       [](auto& g, auto& x) { g.broadcast(view(x), 1).wait(); }},
      {[](auto& g, auto&) { g.allocate(100); }, [](auto& g, auto&) { g.allocate(200); }},
      {[](auto& g, auto&) { g.barrier().wait(); }, [](auto& g, auto& x) { x.clear(), g.all_reduce(view(x)).wait(); }},
  };
  for (const auto& pair : pairs) {
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
    const std::string text = error_of<Mismatch>([&] { group->all_reduce(view(x), {.weight = weight}).wait(); });
    expect_text(text, {"all_reduce 1 (weighted sum", "7 of rank 0 (", "4611686018427387904 of rank 1 (",
                       "4611686018427387904 of rank 2 ("});
  });
}

TEST(Failures, ATimeoutNamesWhoDidNotArrive) {
  std::latch over(3);
  run_ranks(4, [&](const Group& group) {
    if (group->rank() == 2) return over.wait();  // does not come before the others have given up
    std::vector<float> x(1000);
    Work work = group->all_reduce(view(x));
    EXPECT_FALSE(work.done());
    const std::string text = error_of<Timeout>([&] { work.wait(Deadline::after(200ms)); });
    expect_text(text, {"all_reduce 1 (sum, 1000 x float32)", "timed out", "not arrived: rank 2 (", "of 0.2 s"});
    EXPECT_EQ(text.find("not arrived: rank 0"), std::string::npos) << text;
    EXPECT_EQ(error_of<Timeout>([&] { group->barrier().wait(); }), text);
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
    const std::string text = error_of<PeerLost>([&] {
      five_steps();
      group->all_reduce(view(x)).wait();
    });
    expect_text(text, {"rank 1 (host", "left after collective 5", "all_reduce 6"});
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
    const std::string text = error_of<PeerLost>([&] {
      group->barrier().wait();
      group->barrier().wait();
    });
    expect_text(text, {"rank 1 (host", "ended by an exception", "after collective 1"});
  };
  EXPECT_EQ(error_of<InvalidArgument>([&] { run_ranks(3, body); }), "rank 1: bad text file");
}

TEST(Failures, AbortFromAnyThreadEndsAWait) {
  std::latch waiting(1);
  std::latch over(1);
  run_ranks(2, [&](const Group& group) {
    if (group->rank() == 1) {
      over.wait();
      EXPECT_EQ(error_of<PeerLost>([&] { group->barrier().wait(); }), "the disk is full");
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
    const std::string text = error_of<PeerLost>([&] { group->all_reduce(view(x)).wait(); });
    expect_text(text, {"rank 0", "destroyed its group with 1 collectives under way"});
  });
}

TEST(Failures, AWorkMayOutliveItsGroupOnceItIsDone) {
  run_ranks(2, [](Group group) {
    std::vector<float> x(10, 1);
    Arena arena = group->allocate(4096);
    Work done = group->all_reduce(view(x));
    done.wait();
    group.reset();
    EXPECT_TRUE(done.done());
    done.wait();
    arena.data[4095] = std::byte{1};  // memory outlives the group too
  });
}

TEST(Failures, MessagesOfDifferentSizesAreAMismatchOnBothSides) {
  run_ranks(2, [](const Group& group) {
    std::vector<float> x(20);
    const std::string text = error_of<Mismatch>([&] {
      if (group->rank() == 0) group->send(BufferView(std::span(x).first(10)), 1, 7).wait();
      group->recv(view(x), 0, 7).wait();
    });
    expect_text(text, {"rank 1", "recv of 20 x float32 from rank 0 with tag 7", "10 x float32"});
  });
}

TEST(Failures, AMessageFromOrToARankThatLeft) {
  run_ranks(3, [](const Group& group) {
    std::vector<float> x(20);
    if (group->rank() == 2) return group->barrier().wait();
    const std::string text = error_of<PeerLost>([&] {
      group->barrier().wait();
      if (group->rank() == 0) group->recv(view(x), 2).wait();
      group->send(view(x), 2).wait();
    });
    expect_text(text, {"rank 2 (host", "left after collective 1"});
  });
}

TEST(Failures, AMessageThatNobodySendsTimesOut) {
  std::latch over(1);
  run_ranks(2, [&](const Group& group) {
    std::vector<float> x(20);
    if (group->rank() == 1) return over.wait();
    Work work = group->recv(view(x), 1, 3);
    expect_text(error_of<Timeout>([&] { work.wait(Deadline::after(100ms)); }),
                {"recv of 20 x float32 from rank 1 with tag 3", "rank 1 ("});
    over.count_down();
  });
}

TEST(Failures, AMessageThatHasBegunSaysSo) {
  std::latch begun(1);
  std::latch over(1);
  run_ranks(2, [&](const Group& group) {
    std::vector<float> x(100000);
    if (group->rank() == 1) {
      Work work = group->send(view(x), 0, 3);
      begun.count_down();
      over.wait();  // does not come back to move it
      return static_cast<void>(error_of<Timeout>([&] { work.wait(); }));
    }
    begun.wait();
    Work work = group->recv(view(x), 1, 3);
    expect_text(error_of<Timeout>([&] { work.wait(Deadline::after(100ms)); }),
                {"recv of 100000 x float32 from rank 1 with tag 3", "rank 1 (", "started the other half, and 0 of 25"});
    over.count_down();
  });
}

TEST(Failures, TooMuchMemoryFailsTheCallAndNotTheGroup) {
  // If nothing refused it in time, this would take all memory of the machine.
  ASSERT_LT(shm::available_memory(), std::uint64_t{1} << 46);
  run_ranks(3, [](const Group& group) {
    const std::string text = error_of<BackendUnavailable>([&] { group->allocate(std::size_t{1} << 46); });
    expect_text(text, {"allocate", "rank 0", "memory"});
    float one = 1;
    group->all_reduce(BufferView(std::span(&one, 1))).wait();
    EXPECT_EQ(one, 3);
    EXPECT_EQ(group->allocate(100).bytes, 100u);
  });
}

int mapped_arenas() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("lockstep-arena") != std::string::npos ? 1 : 0;
  return count;
}

TEST(Failures, DroppedArenasAreGoneBeforeTheNextIsMade) {
  run_ranks(3, [](const Group& group) {
    Arena dropped = group->allocate(1 << 20);
    const Arena kept = group->allocate(1 << 20);
    group->barrier().wait();
    EXPECT_EQ(mapped_arenas(), 2);
    group->barrier().wait();
    dropped = {};
    // Only what happens before it makes memory.
    error_of<BackendUnavailable>([&] { group->allocate(std::size_t{1} << 46); });
    EXPECT_EQ(mapped_arenas(), 1);
    group->barrier().wait();
  });
}

TEST(Failures, WhoGivesUpTheBootstrapDoesNotKeepTheOthersWaiting) {
  GroupContext context;
  context.store = std::make_shared<store::HashStore>();
  context.timeout = 60s;
  for (int r = 0; r < 2; ++r) context.roster.push_back({r, r, 4711 + r, "here", boot_id()});
  context.identity.rank = 1;
  const std::string timeout = error_of<Timeout>([&] { shm::backend().create(context, Deadline::after(100ms)); });
  expect_text(timeout, {"rank 0 (host here, pid 4711) did not come"});
  context.identity.rank = 0;
  expect_text(error_of<BackendUnavailable>([&] { shm::backend().create(context, Deadline::after(60s)); }),
              {"rank 1 (host here, pid 4712)", timeout.c_str()});
}

TEST(Failures, ARankThatDoesNotComeToTheBootstrapIsNamed) {
  GroupContext context;
  context.store = std::make_shared<store::HashStore>();
  context.timeout = 10s;
  for (int r = 0; r < 3; ++r) context.roster.push_back({r, r, 4711 + r, "here", boot_id()});
  const std::string text = error_of<Timeout>([&] { shm::backend().create(context, Deadline::after(200ms)); });
  expect_text(text, {"rank 1 (host here, pid 4712)", "rank 2 (host here, pid 4713)", "shared memory"});
}

TEST(Failures, RanksOnSeveralHostsAreRefused) {
  GroupContext context;
  context.roster = {{0, 0, 1, "here", "boot-a"}, {1, 0, 2, "there", "boot-b"}};
  expect_text(shm::backend().why_not(context), {"rank 0 (host here", "rank 1 (host there", "one host"});
}

}  // namespace
}  // namespace lockstep::testing
