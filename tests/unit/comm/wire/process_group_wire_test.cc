// SPDX-License-Identifier: Apache-2.0
// The process group over a wire that is nothing but memory: what does not depend on TCP or Open MPI.
#include "runtime/comm/wire/process_group_wire.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>
#include <latch>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/comm/group_internals.h"
#include "tests/support/cause_of.h"
#include "tests/support/messages.h"
#include "tests/unit/comm/wire/memory_wire.h"

namespace lockstep::wire::process_group_wire_test {
namespace {

using lockstep::testing::cause_of;
using lockstep::testing::error_of;
using lockstep::testing::expect_cause;
using lockstep::testing::expect_message;
using lockstep::testing::expect_one_cause;
using lockstep::testing::expect_text;

// What a body throws to be unwound with its group, and nothing else.
struct Unwound {};

// Runs `body` on a thread for each rank, each on a host of its own. `on_propose` is called before a rank proposes a
// cause.
using Body = std::function<void(ProcessGroup&)>;
void on_ranks(
    const Hub& hub, const Body& body, const std::function<void()>& on_propose = [] {}) {
  wire::on_ranks(roster_of(std::vector<int>(hub->size, 1)), [&](GroupContext& context, const Deadline& deadline) {
    const auto all = std::exchange(context.scopes, std::make_shared<membership::Scopes>());
    context.scopes->begin([&](const std::string& scope, const std::vector<int>& ranks, std::string_view word) {
      if (!scope.empty()) on_propose();
      all->say(scope, ranks, word);
    });
    for (const std::string scope : {"", "/failure/first"}) {
      all->subscribe(scope, [&, scope](std::string_view word) { context.scopes->deliver(scope, std::string(word)); });
    }
    try {
      auto own = std::make_unique<MemoryWire>(hub, context.identity.rank);
      body(*ProcessGroupWire::create("memory", context, std::move(own), deadline));
    } catch (const Unwound&) {
    }
  });
}
Hub hub_of(std::size_t size) { return std::make_shared<MemoryWire::Hub>(size); }

// Comes to rank 0 as if from rank 1.
void send_to_rank_0(const Hub& hub, const FrameBytes& bytes) {
  MutexLock lock(hub->mutex);
  hub->frames[0].emplace_back(1, bytes);
  hub->notify();
}

// Of every rank, when its wait for what never comes has ended.
std::vector<Cause> causes_after(const Hub& hub, const Body& what_rank_1_does) {
  std::vector<Cause> causes(hub->size);
  std::latch over(static_cast<std::ptrdiff_t>(hub->size));
  on_ranks(hub, [&](ProcessGroup& group) {
    causes[static_cast<std::size_t>(group.rank())] = cause_of<Error>([&] {
      group.barrier().wait();
      if (group.rank() == 1) what_rank_1_does(group);
      Work waits = group.recv(BufferView(nullptr, 0, DType::u8), group.rank(), 7);  // from itself: never comes
      waits.wait();
    });
    over.arrive_and_wait();
  });
  return causes;
}

TEST(ProcessGroupWire, AConnectionThatEndsIsADeathWithOneCause) {
  const Hub hub = hub_of(3);
  const auto causes = causes_after(hub, [&](ProcessGroup&) {
    MutexLock lock(hub->mutex);
    for (const std::size_t survivor : {0, 2}) hub->lost[survivor].push_back(1);
    hub->notify();
  });
  expect_cause(causes[0], {.kind = Cause::Kind::lost, .rank = 1, .host = "host1", .pid = 101, .sequence = 1});
  expect_text(causes[0].text, {"rank 1 (host host1, pid 101) has died: its process ended, by a signal or an exit, "
                               "without closing its group, or its host can't be reached; rank ",
                               " (memory: the test took it away)"});
  EXPECT_EQ(causes[1].text, "the other ranks have given this one up: " + causes[0].text) << "it is not dead at all";
  EXPECT_EQ(causes[0], causes[2]);
}

// The job's membership hears of a rank what no connection tells.
TEST(ProcessGroupWire, ALostRankIsNamedWithWhatTheOthersWereDoing) {
  const auto causes = causes_after(hub_of(3), [](ProcessGroup& group) {
    EXPECT_EQ(group.internals().last_sequence(), 1);
    group.internals().on_peer_failure({.kind = Cause::Kind::silent, .rank = 2, .text = "rank 2 stopped answering"});
  });
  EXPECT_EQ(causes[0].text, "rank 2 stopped answering; rank 1 (host host1, pid 101) was in no collective");
  expect_one_cause(std::span(causes).first(2), {.kind = Cause::Kind::silent, .rank = 2});
  EXPECT_EQ(causes[2].text, "the other ranks have given this one up: " + causes[0].text);
}

// A number sizes what waits for its turn, so it can't be any.
TEST(ProcessGroupWire, BytesThatAreNoFrameAndACollectiveOutOfOrderFailTheGroup) {
  std::vector<std::pair<FrameBytes, std::string>> cases = {
      {{}, " over memory from rank 1 (host host1, pid 101) that are not a frame of this version"}};
  for (const std::uint64_t number : {std::uint64_t{1}, std::uint64_t{3}, ~std::uint64_t{0}}) {
    cases.emplace_back(write_frame({.number = number}),
                       "rank 0 (host host0, pid 100) got word of collective " + std::to_string(number) +
                           " over memory from rank 1 (host host1, pid 101), and collective 2 is next; run one version "
                           "of lockstep on every host");
  }
  for (const auto& [frame, text] : cases) {
    const Hub hub = hub_of(2);
    const auto causes = causes_after(hub, [&, bytes = frame](ProcessGroup&) { send_to_rank_0(hub, bytes); });
    expect_one_cause(causes, {.kind = Cause::Kind::mismatch, .reporter = 0, .text = text});
  }
}

TEST(ProcessGroupWire, WhatBecomesOfARankAfterItsGoodbyeIsNoLoss) {
  const Hub hub = hub_of(2);
  on_ranks(hub, [&](ProcessGroup& group) {
    if (group.rank() == 1) send_to_rank_0(hub, write_frame({.kind = FrameKind::goodbye, .number = 1}));
    group.barrier().wait();  // what rank 1 says of it comes after its goodbye
    if (group.rank() == 0) group.internals().on_peer_failure({.rank = 1, .text = "rank 1 is lost"});
    EXPECT_NO_THROW(group.progress());
  });
}

// The caller frees its buffers when it gets the error.
TEST(ProcessGroupWire, AnErrorComesOnceTheWireHasLetGoOfTheMemory) {
  std::latch over(2);
  const Hub hub = hub_of(2);
  on_ranks(hub, [&](ProcessGroup& group) {
    if (group.rank() == 1) {
      // Says that it has come, and moves nothing.
      send_to_rank_0(
          hub, write_frame(
                   {.number = 1, .record = {.kind = comm::OpKind::all_reduce, .dtype = DType::f32, .count = 100000}}));
      return over.arrive_and_wait();
    }
    std::thread other([&] {
      {
        MutexLock lock(hub->mutex);
        while (hub->bulk.empty()) hub->changed.wait(hub->mutex);  // rank 0 is in the transfer
      }
      group.abort("the disk is full");
    });
    std::vector<float> x(100000);
    EXPECT_THROW(group.all_reduce(BufferView(std::span(x))).wait(), PeerLost);
    {
      MutexLock lock(hub->mutex);
      EXPECT_TRUE(hub->cancel_transfers[0]);
    }
    other.join();
    over.arrive_and_wait();
  });
}

// Agreeing on the cause takes a while, in which the communication thread looks whether there is anything to do: it must
// not take the group's end for a goodbye.
TEST(ProcessGroupWire, AnExceptionIsTheCauseHoweverLongItTakesToAgree) {
  const Hub hub = hub_of(2);
  const auto wait_a_while = [&] {
    MutexLock lock(hub->mutex);
    const int before = hub->waits[1];
    hub->notify();
    const Deadline deadline = Deadline::after(std::chrono::seconds(5));  // it may have left, which the cause then says
    while (hub->waits[1] == before && hub->changed.wait_until(hub->mutex, deadline)) {
    }
  };
  const auto body = [](ProcessGroup& group) {
    if (group.rank() == 1) {
      group.barrier().wait();
      throw Unwound();
    }
    // Rank 1 may be through the first one, and gone, while this rank still waits there.
    const auto two_barriers = [&] {
      group.barrier().wait();
      group.barrier().wait();
    };
    EXPECT_EQ(error_of<PeerLost>(two_barriers),
              "rank 1 (host host1, pid 101) ended with an exception after collective 1: see its own output");
  };
  on_ranks(hub, body, wait_a_while);
}

// Its sender would never come to read the goodbye, and the memory would not be the receiver's alone.
TEST(ProcessGroupWire, WhoLeavesWhileALargeMessageComesInFailsTheGroup) {
  const Hub hub = hub_of(2);
  {
    MutexLock lock(hub->mutex);
    hub->withholds = [](Tag tag) { return tag.kind == Tag::Kind::message; };
  }
  on_ranks(hub, [&](ProcessGroup& group) {
    std::vector<float> x(100000);
    if (group.rank() == 0) {
      Work never_waited_for = group.recv(BufferView(std::span(x)), 1);
      MutexLock lock(hub->mutex);
      while (!hub->is_anything_withheld) hub->changed.wait(hub->mutex);
      return;
    }
    expect_message("comm", "sender", error_of<PeerLost>([&] { group.send(BufferView(std::span(x)), 0).wait(); }));
  });
}

// A library that waits for a rank that does not come.
class Waits final : public IdleWire {
 public:
  struct Shared {
    Mutex mutex;
    Condition changed;
    bool let_in GUARDED_BY(mutex) = false;
    bool closed GUARDED_BY(mutex) = false;
    void let() {
      MutexLock lock(mutex);
      let_in = true;
      changed.notify_all();
    }
  };
  Waits(std::shared_ptr<Shared> shared, bool interruptible)
      : shared_(std::move(shared)), interruptible_(interruptible) {}

  std::string opening() const override { return "slow_init, which waits for every rank"; }
  bool can_interrupt_open() const override { return interruptible_; }
  void open(Listener&, const Deadline&) override {
    MutexLock lock(shared_->mutex);
    while (!shared_->let_in) shared_->changed.wait(shared_->mutex);
    if (interruptible_) throw Broken("interrupted");
  }
  void interrupt() override {
    if (interruptible_) shared_->let();
  }
  void close(const Deadline&) override {
    MutexLock lock(shared_->mutex);
    shared_->closed = true;
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const bool interruptible_;
};

// Rank 1 is lost while rank 0 connects, or the deadline passes. A library that can't be interrupted is left to itself.
TEST(ProcessGroupWire, AStartThatEndsDoesNotWaitForTheLibrary) {
  for (const bool is_interruptible : {true, false}) {
    for (const bool is_lost : {false, true}) {
      GroupContext context;
      context.roster = roster_of({1, 1});
      context.store = std::make_shared<store::HashStore>();
      context.check = [is_lost] {
        if (is_lost) throw PeerLost("rank 1 is lost");
      };
      const auto shared = std::make_shared<Waits::Shared>();
      std::function<void()> join;
      const ThreadMaker keep_join = [&](std::function<void()> body) {
        join = start_own_thread(std::move(body));
        return [] { ADD_FAILURE() << "nobody may wait for it"; };
      };
      const auto deadline = Deadline::after(is_lost ? std::chrono::seconds(40) : std::chrono::seconds(0));
      const std::string text = error_of<Error>([&] {
        ProcessGroupWire::create("slow", context, std::make_unique<Waits>(shared, is_interruptible), deadline,
                                 is_interruptible ? ThreadMaker(&start_own_thread) : keep_join);
      });
      if (is_lost) {
        EXPECT_EQ(text,
                  "rank 1 is lost; rank 0 (host host0, pid 100) waited for slow_init, which waits for every rank");
      } else {
        expect_text(text, {"slow_init, which waits for every rank", "of 0 s"});
      }
      EXPECT_EQ(context.store.use_count(), 1) << "rank 0's store ends with its owner, not with the library";
      shared->let();
      if (join) join();
      MutexLock lock(shared->mutex);
      EXPECT_TRUE(shared->closed);
    }
  }
}

// lockstep inspect hides sleeping threads of the common name, and this one may hang in the library.
TEST(ProcessGroupWire, TheCommunicationThreadHasANameOfItsOwn) {
  char name[16] = {};
  start_own_thread([&name] { pthread_getname_np(pthread_self(), name, sizeof name); })();
  EXPECT_STREQ(name, "lockstep-comm");
}

}  // namespace
}  // namespace lockstep::wire::process_group_wire_test
