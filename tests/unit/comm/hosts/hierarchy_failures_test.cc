// SPDX-License-Identifier: Apache-2.0
// What becomes of a group over several hosts when a rank does not come, differs, dies or stands still, at each step of
// what it does for the others.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <latch>

#include "lockstep/base/error.h"
#include "runtime/comm/wire/op_header_table.h"
#include "tests/support/cause_of.h"
#include "tests/unit/comm/hosts/fake_hosts.h"

namespace lockstep::wire::hierarchy_failures_test {
namespace {

using lockstep::testing::cause_of;
using lockstep::testing::expect_cause;
using lockstep::testing::expect_one_cause;
using lockstep::testing::expect_text;
using lockstep::testing::golden;
using Causes = std::vector<Cause>;  // by rank

TEST(Hierarchy, WhoDoesNotComeIsNamedWhicheverHostHeIsOn) {
  for (const int missing : {1, 2, 3}) {
    Causes causes(4);
    std::latch over(4);
    on_hosts({2, 2}, [&](ProcessGroup& group, const Hub&) {
      group.barrier().wait();
      Cause& cause = causes[static_cast<std::size_t>(group.rank())];
      if (group.rank() == missing) {
        // From itself: never comes, but the failure does.
        Work waits = group.recv(BufferView(nullptr, 0, DType::u8), group.rank(), 7);
        cause = cause_of<Error>([&] { waits.wait(); });
      } else {
        // Far more than can be announced: the first is what this rank waits for.
        std::vector<Work> works;
        for (int i = 0; i < 100; ++i) works.push_back(group.barrier());
        cause = cause_of<Timeout>([&] { works.back().wait(Deadline::after(std::chrono::milliseconds(200))); });
      }
      over.arrive_and_wait();
    });
    for (const Cause& cause : causes) {
      expect_cause(cause, {.kind = Cause::Kind::timeout, .rank = missing, .sequence = 101});
    }
  }
}

// Rank 1 tells rank 0 of rank 3, which has come.
TEST(Hierarchy, WhoeverIsNotHeardOfForAnothersSakeIsNoCulprit) {
  Causes causes(4);
  std::latch stopped(4);
  std::latch over(3);
  on_hosts({2, 2}, [&](ProcessGroup& group, const Hub& hub) {
    group.barrier().wait();
    if (group.rank() == 1) {
      MutexLock lock(hub->mutex);
      hub->stopped[1] = true;
    }
    stopped.arrive_and_wait();
    if (group.rank() == 1) {
      over.wait();
      MutexLock lock(hub->mutex);
      hub->stopped[1] = false;
      hub->notify();
      return;
    }
    const Work work = group.barrier();
    // Rank 0, which knows least, says it for all.
    const auto limit = group.rank() == 0 ? std::chrono::milliseconds(200) : std::chrono::milliseconds(40000);
    causes[static_cast<std::size_t>(group.rank())] = cause_of<Timeout>([&] { work.wait(Deadline::after(limit)); });
    over.count_down();
  });
  for (const int rank : {0, 2, 3}) {
    const Cause& cause = causes[static_cast<std::size_t>(rank)];
    expect_cause(cause, {.kind = Cause::Kind::timeout, .rank = 1, .reporter = 0, .sequence = 2});
    EXPECT_EQ(
        golden(cause.text),
        "barrier 2 on rank 0 (...) timed out, elapsed T s of 0.2 s; not arrived: rank 1 (...); not known, because one "
        "of those would report them to this host: rank 3 (...); see why it is late, or raise the timeout");
  }
}

// Rank 2 comes when all that the others have said is on every host's table. All that is sent stays under way.
TEST(Hierarchy, WhoeverCameLastIsNamedWhenDataIsOnItsWay) {
  Causes causes(4);
  on_hosts({2, 2}, [&](ProcessGroup& group, const Hub& hub) {
    std::vector<float> data(kCount);
    group.barrier().wait();
    {
      MutexLock lock(hub->mutex);
      hub->withholds = [](Tag tag) { return tag.kind == Tag::Kind::segment; };
      const auto all_is_told = [&]() REQUIRES(hub->mutex) {
        std::size_t told = 0;
        for (const auto& [way, frames] : hub->announced) told += way.first != 2 && frames == 2 ? 1 : 0;
        return told == 3 && std::count(hub->sleeps.begin(), hub->sleeps.end(), true) == 4 &&
               std::all_of(hub->frames.begin(), hub->frames.end(), [](const auto& frames) { return frames.empty(); });
      };
      while (group.rank() == 2 && !all_is_told()) hub->changed.wait(hub->mutex);
    }
    const Work work = group.all_reduce(BufferView(std::span(data)));
    {
      MutexLock lock(hub->mutex);
      while (hub->sent[{group.rank(), 2}] == 0) hub->changed.wait(hub->mutex);  // all have come
    }
    const auto limit = group.rank() == 0 ? std::chrono::milliseconds(200) : std::chrono::milliseconds(40000);
    causes[static_cast<std::size_t>(group.rank())] = cause_of<Timeout>([&] { work.wait(Deadline::after(limit)); });
  });
  for (const Cause& cause : causes) {
    expect_cause(cause, {.kind = Cause::Kind::timeout,
                         .reporter = 0,
                         .sequence = 2,
                         .text = "; the last to arrive was rank 2 (host host1, pid 102), "});
  }
}

TEST(Hierarchy, ADifferenceIsNamedOnEveryHost) {
  for (const int other : {1, 2}) {
    Causes causes(4);
    on_hosts({2, 2}, [&](ProcessGroup& group, const Hub&) {
      float x = 1;
      group.barrier().wait();
      causes[static_cast<std::size_t>(group.rank())] = cause_of<Mismatch>(
          [&] { (group.rank() == other ? group.barrier() : group.all_reduce(BufferView(std::span(&x, 1)))).wait(); });
    });
    expect_one_cause(
        causes, {.kind = Cause::Kind::mismatch, .sequence = 2, .text = "rank " + std::to_string(other) + " (host"});
  }
}

// Where rank 1 comes to an end, of the steps of a segment: before it gives its data to its host, before its host's sum
// is out, before the other hosts' have come, before its result is out, before the others' have.
using Call = MemoryWire::Call;
struct Stage {
  const char* name;
  Call call;
  std::uint64_t trip;  // of the two between hosts
};
constexpr Stage kStages[] = {{"fill", Call::receive, 0},
                             {"add up", Call::send, 0},
                             {"collect", Call::done, 0},
                             {"hand on", Call::send, 1},
                             {"spread", Call::done, 1}};

using Start = std::function<Work(ProcessGroup&, std::span<float>)>;
Work reduce_all(ProcessGroup& group, std::span<float> data) { return group.all_reduce(BufferView(data)); }

// Rank 1 of three hosts of two ranks stands still at `stage` of the second segment. `then` is called on every other
// rank once it does, with the collective that it waits for; what that throws is returned, by rank.
Causes causes_when_rank_1_stops(
    const Stage& stage, bool is_in_arena, const Start& start,
    const std::function<Cause(ProcessGroup& group, const Hub& hub, const Work& work)>& then) {
  constexpr std::size_t kFloats = (std::size_t{9} << 20) / sizeof(float);
  Causes causes(6);
  std::latch over(5);
  on_hosts({2, 2, 2}, [&](ProcessGroup& group, const Hub& hub) {
    const Arena arena = group.allocate(kFloats * sizeof(float));
    std::vector<float> own(is_in_arena ? 0 : kFloats);
    const std::span<float> data = is_in_arena ? floats_of(arena) : std::span(own);
    group.barrier().wait();
    if (group.rank() == 1) {
      MutexLock lock(hub->mutex);
      hub->stands_still = [&](int rank, Call call, Tag tag) {
        return rank == 1 && call == stage.call && tag == Tag{Tag::Kind::segment, 2 * 2 + stage.trip};
      };
    }
    group.barrier().wait();
    const Work work = start(group, data);
    if (group.rank() == 1) {
      over.wait();
      {
        MutexLock lock(hub->mutex);
        hub->stands_still = {};
        hub->notify();
      }
      try {
        work.wait();
      } catch (const Error&) {
        // Unless all that it needs has come by then.
      }
      return;
    }
    {
      MutexLock lock(hub->mutex);
      while (!hub->is_anybody_standing) hub->changed.wait(hub->mutex);
    }
    causes[static_cast<std::size_t>(group.rank())] = then(group, hub, work);
    over.count_down();
  });
  causes.erase(causes.begin() + 1);  // of rank 1 itself
  return causes;
}

// What the ranks say of rank 1.
Cause of_rank_1(Cause::Kind kind, std::int64_t sequence = -1) {
  return {.kind = kind, .rank = 1, .host = "host0", .pid = 101, .sequence = sequence};
}

TEST(Hierarchy, ARankThatDiesAtAnyStageIsNamed) {
  for (const bool is_in_arena : {true, false}) {
    for (const Stage& stage : kStages) {
      SCOPED_TRACE(std::string(stage.name) + (is_in_arena ? ", arena" : ", the program's own memory"));
      const auto causes = causes_when_rank_1_stops(stage, is_in_arena, reduce_all,
                                                   [](ProcessGroup& group, const Hub& hub, const Work& work) {
                                                     {
                                                       MutexLock lock(hub->mutex);
                                                       hub->lost[static_cast<std::size_t>(group.rank())].push_back(1);
                                                       hub->notify();
                                                     }
                                                     return cause_of<PeerLost>([&] { work.wait(); });
                                                   });
      expect_one_cause(causes, of_rank_1(Cause::Kind::lost, 6));
    }
  }
}

// Nobody is told when a cable is out. Its neighbour and its counterparts, whichever gives up first, say whom they wait
// for.
TEST(Hierarchy, ARankThatIsSilentAtAnyStageIsNamedByWhoWaitsForIt) {
  for (const bool is_in_arena : {true, false}) {
    for (const Stage& stage : kStages) {
      for (const int impatient : {0, 3}) {
        SCOPED_TRACE(std::string(stage.name) + (is_in_arena ? ", arena, " : ", the program's own memory, ") +
                     std::to_string(impatient));
        const auto causes = causes_when_rank_1_stops(
            stage, is_in_arena, reduce_all, [impatient](ProcessGroup& group, const Hub& hub, const Work& work) {
              {
                MutexLock lock(hub->mutex);
                while (std::count(hub->sleeps.begin(), hub->sleeps.end(), true) < 5) hub->changed.wait(hub->mutex);
              }
              const auto limit = std::chrono::milliseconds(group.rank() == impatient ? 200 : 40000);
              return cause_of<Timeout>([&] { work.wait(Deadline::after(limit)); });
            });
        expect_one_cause(causes, {.kind = Cause::Kind::timeout, .sequence = 6, .text = "rank 1 (host host0, pid 101)"});
        expect_text(causes.front().text, {"all have arrived; data is still on its way to or from "});
      }
    }
  }
}

// The same of what goes through windows alone; who has no need of rank 1 goes on to the next collective.
struct HandedRound {
  const char* name;
  Start start;
  std::vector<Stage> stages;
  int waits;  // a rank that waits for rank 1
};
const std::vector<HandedRound>& handed_round() {
  static const auto broadcast_from = [](int root) {
    return [root](ProcessGroup& group, std::span<float> data) { return group.broadcast(BufferView(data), root); };
  };
  static const Start gather_all = [](ProcessGroup& group, std::span<float> data) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::size_t count = data.size() / 6;
    return group.all_gather(BufferView(data.subspan(rank * count, count)), BufferView(data.first(6 * count)));
  };
  static const Start reduce_scatter = [](ProcessGroup& group, std::span<float> data) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::size_t count = data.size() / 6;
    return group.reduce_scatter(BufferView(data.first(6 * count)), BufferView(data.subspan(rank * count, count)));
  };
  static const std::vector<HandedRound> all = {
      {"broadcast within rank 1's host", broadcast_from(0), {{"send", Call::send, 0}}, 3},
      {"broadcast to it", broadcast_from(2), {{"collect", Call::done, 0}, {"spread", Call::done, 1}}, 0},
      {"broadcast by way of it", broadcast_from(2), {{"hand on", Call::send, 1}}, 5},
      {"all_gather", gather_all, {{"send", Call::send, 0}, {"collect", Call::done, 0}}, 3},
      {"reduce_scatter", reduce_scatter, {{"send", Call::send, 0}, {"collect", Call::done, 0}}, 3}};
  return all;
}

TEST(Hierarchy, ARankThatDiesWhileDataIsHandedRoundIsNamed) {
  for (const HandedRound& one : handed_round()) {
    for (const Stage& stage : one.stages) {
      SCOPED_TRACE(std::string(one.name) + ", " + stage.name);
      const auto causes =
          causes_when_rank_1_stops(stage, false, one.start, [](ProcessGroup& group, const Hub& hub, const Work& work) {
            {
              MutexLock lock(hub->mutex);
              hub->lost[static_cast<std::size_t>(group.rank())].push_back(1);
              hub->notify();
            }
            return cause_of<PeerLost>([&] {
              work.wait();
              group.barrier().wait();
            });
          });
      expect_one_cause(causes, of_rank_1(Cause::Kind::lost));
    }
  }
}

TEST(Hierarchy, ARankThatIsSilentWhileDataIsHandedRoundIsNamedByWhoWaitsForIt) {
  for (const HandedRound& one : handed_round()) {
    for (const Stage& stage : one.stages) {
      SCOPED_TRACE(std::string(one.name) + ", " + stage.name);
      const auto causes = causes_when_rank_1_stops(
          stage, false, one.start, [&one](ProcessGroup& group, const Hub& hub, const Work& work) {
            {
              MutexLock lock(hub->mutex);
              while (std::count(hub->sleeps.begin(), hub->sleeps.end(), true) < 5) hub->changed.wait(hub->mutex);
            }
            return cause_of<Timeout>([&] {
              if (group.rank() == one.waits) work.wait(Deadline::after(std::chrono::milliseconds(200)));
              work.wait();
              group.barrier().wait();
            });
          });
      expect_one_cause(causes, {.kind = Cause::Kind::timeout, .sequence = 6, .text = "rank 1 (host host0, pid 101)"});
      expect_text(causes.front().text, {"all have arrived; data is still on its way to or from "});
    }
  }
}

TEST(Hierarchy, AFailureEndsWhoWaitsInTheMemoryAndOnTheWire) {
  for (const int failing : {0, 3}) {
    Causes causes(4);
    on_hosts({2, 2}, [&](ProcessGroup& group, const Hub&) {
      Cause& cause = causes[static_cast<std::size_t>(group.rank())];
      if (group.rank() == failing) {
        const Arena arena = group.allocate(kCount * sizeof(float));
        group.abort("the test has seen enough");
        cause = cause_of<PeerLost>([&] { group.barrier().wait(); });
      } else {
        cause = cause_of<PeerLost>([&] {  // it may come while the memory is allocated
          const Arena arena = group.allocate(kCount * sizeof(float));
          for (;;) group.all_reduce(BufferView(floats_of(arena))).wait();
        });
      }
    });
    expect_one_cause(causes, {.kind = Cause::Kind::aborted, .rank = failing, .text = "the test has seen enough"});
  }
}

}  // namespace
}  // namespace lockstep::wire::hierarchy_failures_test
