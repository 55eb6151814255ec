// SPDX-License-Identifier: Apache-2.0
// What becomes of a group over several hosts when a rank dies or stands still, at each step of what it does for the
// others. tests/conformance has ranks on hosts that do not come, that differ and that abort.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <latch>

#include "lockstep/base/error.h"
#include "runtime/comm/wire/op_header_table.h"
#include "tests/support/cause_of.h"
#include "tests/support/messages.h"
#include "tests/unit/comm/hosts/fake_hosts.h"

namespace lockstep::wire::hierarchy_failures_test {
namespace {

using lockstep::testing::cause_of;
using lockstep::testing::expect_cause;
using lockstep::testing::expect_message;
using lockstep::testing::expect_one_cause;
using lockstep::testing::expect_text;
using Causes = std::vector<Cause>;  // by rank

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
    expect_message("comm", "rank 3 is not known", cause.text);
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

// Where rank 1 comes to an end, of the steps of a segment: before it gives its data to its host, before its host's sum
// is out, before the other hosts' have come, before its result is out, before the others' have.
using Call = MemoryWire::Call;
struct Stage {
  const char* name;
  Call call;
  std::uint64_t trip;  // of the two between hosts
};
const std::vector<Stage> kStages = {{"fill", Call::receive, 0},
                                    {"add up", Call::send, 0},
                                    {"collect", Call::done, 0},
                                    {"hand on", Call::send, 1},
                                    {"spread", Call::done, 1}};

// A collective of three hosts of two ranks, and the stages at which rank 1 stands still in it.
struct Trip {
  const char* name;
  std::function<Work(ProcessGroup&, std::span<float>)> start;
  std::vector<Stage> stages;
  std::vector<int> waiting;  // ranks that wait for rank 1; the others may continue to the next collective
  bool is_in_arena = false;
};
const std::vector<Trip>& trips() {
  static const auto reduce_all = [](ProcessGroup& group, std::span<float> data) {
    return group.all_reduce(BufferView(data));
  };
  static const auto broadcast_from = [](int root) {
    return [root](ProcessGroup& group, std::span<float> data) { return group.broadcast(BufferView(data), root); };
  };
  static const auto row_of = [](ProcessGroup& group, std::span<float> data) {
    return BufferView(data.subspan(static_cast<std::size_t>(group.rank()) * (data.size() / 6), data.size() / 6));
  };
  static const auto gather_all = [](ProcessGroup& group, std::span<float> data) {
    return group.all_gather(row_of(group, data), BufferView(data.first(data.size() / 6 * 6)));
  };
  static const auto reduce_scatter = [](ProcessGroup& group, std::span<float> data) {
    return group.reduce_scatter(BufferView(data.first(data.size() / 6 * 6)), row_of(group, data));
  };
  static const std::vector<Trip> all = {
      {"all_reduce in an arena", reduce_all, kStages, {0, 3}, true},
      {"all_reduce in the program's own memory", reduce_all, kStages, {0, 3}},
      {"broadcast within rank 1's host", broadcast_from(0), {{"send", Call::send, 0}}, {3}},
      {"broadcast to it", broadcast_from(2), {{"collect", Call::done, 0}, {"spread", Call::done, 1}}, {0}},
      {"broadcast by way of it", broadcast_from(2), {{"hand on", Call::send, 1}}, {5}},
      {"all_gather", gather_all, {{"send", Call::send, 0}, {"collect", Call::done, 0}}, {3}},
      {"reduce_scatter", reduce_scatter, {{"send", Call::send, 0}, {"collect", Call::done, 0}}, {3}}};
  return all;
}

// Rank 1 stands still at `stage` of the second segment. `then` is called on every other rank once it does, with the
// collective that it waits for; the cause of what that throws is returned, of each rank.
template <typename Expected>
Causes causes_when_rank_1_stops(
    const Trip& trip, const Stage& stage,
    const std::function<void(ProcessGroup& group, const Hub& hub, const Work& work)>& then) {
  constexpr std::size_t kFloats = (std::size_t{9} << 20) / sizeof(float);
  Causes causes(6);
  std::latch over(5);
  on_hosts({2, 2, 2}, [&](ProcessGroup& group, const Hub& hub) {
    const Arena arena = group.allocate(kFloats * sizeof(float));
    std::vector<float> own(trip.is_in_arena ? 0 : kFloats);
    const std::span<float> data = trip.is_in_arena ? floats_of(arena) : std::span(own);
    group.barrier().wait();
    if (group.rank() == 1) {
      MutexLock lock(hub->mutex);
      hub->stands_still = [&](int rank, Call call, Tag tag) {
        return rank == 1 && call == stage.call && tag == Tag{Tag::Kind::segment, 2 * 2 + stage.trip};
      };
    }
    group.barrier().wait();
    const Work work = trip.start(group, data);
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
    causes[static_cast<std::size_t>(group.rank())] = cause_of<Expected>([&] {
      then(group, hub, work);
      work.wait();
      group.barrier().wait();
    });
    over.count_down();
  });
  causes.erase(causes.begin() + 1);  // of rank 1 itself
  return causes;
}

// Waits until every rank except rank 1 has done all it can without rank 1. A rank that was rung still counts as asleep
// until its thread runs. So all are woken several times: a segment needs fewer steps than there are rounds.
void await_rest(const Hub& hub) {
  MutexLock lock(hub->mutex);
  for (int round = 0; round < 10; ++round) {
    const std::vector<int> before = hub->waits;
    const auto all_sleep_again = [&]() REQUIRES(hub->mutex) {
      for (std::size_t rank = 0; rank < before.size(); ++rank) {
        if (rank != 1 && (!hub->sleeps[rank] || hub->waits[rank] == before[rank])) return false;
      }
      return true;
    };
    hub->notify();
    while (!all_sleep_again()) hub->changed.wait(hub->mutex);
  }
}

TEST(Hierarchy, ARankThatDiesAtAnyStageIsNamed) {
  for (const Trip& trip : trips()) {
    for (const Stage& stage : trip.stages) {
      SCOPED_TRACE(std::string(trip.name) + ", " + stage.name);
      const auto dies = [](ProcessGroup& group, const Hub& hub, const Work&) {
        MutexLock lock(hub->mutex);
        hub->lost[static_cast<std::size_t>(group.rank())].push_back(1);
        hub->notify();
      };
      expect_one_cause(causes_when_rank_1_stops<PeerLost>(trip, stage, dies),
                       {.kind = Cause::Kind::lost, .rank = 1, .host = "host0", .pid = 101});
    }
  }
}

// Nobody is told when a cable is out. Whoever gives up first says whom it waits for.
TEST(Hierarchy, ARankThatIsSilentAtAnyStageIsNamedByWhoWaitsForIt) {
  for (const Trip& trip : trips()) {
    for (const Stage& stage : trip.stages) {
      for (const int impatient : trip.waiting) {
        SCOPED_TRACE(std::string(trip.name) + ", " + stage.name + ", " + std::to_string(impatient));
        const auto waits = [impatient](ProcessGroup& group, const Hub& hub, const Work& work) {
          if (group.rank() != impatient) return;
          await_rest(hub);
          work.wait(Deadline::after(std::chrono::milliseconds(200)));
        };
        const auto causes = causes_when_rank_1_stops<Timeout>(trip, stage, waits);
        expect_one_cause(causes, {.kind = Cause::Kind::timeout, .sequence = 6, .text = "rank 1 (host host0, pid 101)"});
        expect_text(causes.front().text, {"all have arrived; data is still on its way to or from "});
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::wire::hierarchy_failures_test
