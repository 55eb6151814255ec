// The process group over a wire that is nothing but memory: what does not depend on Gloo or Open MPI.
#include "runtime/comm/wire/process_group_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <latch>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/comm/reduction.h"
#include "runtime/store/hash_store.h"
#include "tests/unit/comm_wire/memory_wire.h"

namespace lockstep::wire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Hub = std::shared_ptr<MemoryWire::Hub>;

// Runs `body` on a thread for each rank.
void on_ranks(int size, const std::function<void(ProcessGroup&, const Hub&)>& body) {
  const auto hub = std::make_shared<MemoryWire::Hub>(size);
  const auto store = std::make_shared<store::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      GroupContext context;
      context.identity.rank = rank;
      for (int r = 0; r < size; ++r) context.roster.push_back({r, r, 100 + r, "host" + std::to_string(r), "boot"});
      context.store = store;
      context.timeout = std::chrono::seconds(40);
      const auto group = ProcessGroupWire::create("memory", context, std::make_unique<MemoryWire>(hub, rank),
                                                  Deadline::after(context.timeout));
      body(*group, hub);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

float noise(int rank, std::size_t element) {
  return std::sin(static_cast<float>(element * 7 + static_cast<std::size_t>(rank) * 1000003)) *
         std::pow(10.0f, static_cast<float>(element % 9) - 4);
}

// Sums of floats depend on their order. Ours has one, whatever carries the data.
TEST(ProcessGroupWire, ReducesInTheOrderOfReductionH) {
  for (const int size : {2, 3, 5}) {
    for (const std::size_t count : {std::size_t{100}, std::size_t{20011}}) {  // in a frame, and beside it
      std::vector<std::vector<float>> inputs(static_cast<std::size_t>(size));
      std::vector<const std::byte*> sources;
      for (int r = 0; r < size; ++r) {
        auto& input = inputs[static_cast<std::size_t>(r)];
        for (std::size_t i = 0; i < count; ++i) input.push_back(noise(r, i));
        sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
      }
      std::vector<float> wanted(count);
      comm::reduce({DType::f32, ReduceOp::sum, 1}, sources, reinterpret_cast<std::byte*>(wanted.data()), count);
      on_ranks(size, [&](ProcessGroup& group, const Hub&) {
        auto all = inputs[static_cast<std::size_t>(group.rank())];
        auto one = all;
        group.all_reduce(BufferView(std::span(all))).wait();
        group.reduce(BufferView(std::span(one)), size - 1).wait();
        EXPECT_EQ(std::memcmp(all.data(), wanted.data(), count * sizeof(float)), 0) << size << " ranks, " << count;
        // Only the root's buffer changes.
        EXPECT_TRUE(one == (group.rank() == size - 1 ? wanted : inputs[static_cast<std::size_t>(group.rank())]));
      });
    }
  }
}

// What every rank says when its wait for what never comes has ended.
std::vector<std::string> causes_after(int size,
                                      const std::function<void(ProcessGroup&, const Hub&)>& what_rank_1_does) {
  std::vector<std::string> causes(static_cast<std::size_t>(size));
  std::latch over(size);
  on_ranks(size, [&](ProcessGroup& group, const Hub& hub) {
    try {
      group.barrier().wait();
      if (group.rank() == 1) what_rank_1_does(group, hub);
      Work waits = group.recv(BufferView(nullptr, 0, DType::u8), group.rank(), 7);  // from itself: never comes
      waits.wait();
    } catch (const Error& error) {
      causes[static_cast<std::size_t>(group.rank())] = error.what();
    }
    over.arrive_and_wait();
  });
  return causes;
}

TEST(ProcessGroupWire, AConnectionThatEndsIsADeathWithOneCause) {
  const auto causes = causes_after(3, [](ProcessGroup&, const Hub& hub) {
    MutexLock lock(hub->mutex);
    for (const std::size_t survivor : {0, 2}) hub->lost[survivor].push_back(1);
    hub->changed.notify_all();
  });
  EXPECT_THAT(causes[0], AllOf(HasSubstr("rank 1 (host host1, pid 101) has died"), HasSubstr("the test took it away")));
  EXPECT_EQ(causes[0], causes[1]) << "rank 1 was told, since it is not dead at all";
  EXPECT_EQ(causes[0], causes[2]);
}

TEST(ProcessGroupWire, BytesThatAreNoFrameFailTheGroup) {
  const auto causes = causes_after(2, [](ProcessGroup&, const Hub& hub) {
    MutexLock lock(hub->mutex);
    hub->frames[0].emplace_back(1, FrameBytes{});
    hub->changed.notify_all();
  });
  EXPECT_THAT(causes[0], AllOf(HasSubstr("no frame of this version"), HasSubstr("rank 1 (host host1, pid 101)")));
  EXPECT_EQ(causes[0], causes[1]);
}

// The job's membership hears of a rank what no connection tells.
TEST(ProcessGroupWire, ALostRankIsNamedWithWhatTheOthersWereDoing) {
  const auto causes = causes_after(3, [](ProcessGroup& group, const Hub&) {
    EXPECT_EQ(group.last_sequence(), 1);
    group.lose(2, "rank 2 stopped answering");
  });
  EXPECT_EQ(causes[0], "rank 2 stopped answering; rank 1 (host host1, pid 101) was in no collective");
  EXPECT_EQ(causes[0], causes[1]);
  EXPECT_EQ(causes[0], causes[2]);
}

TEST(ProcessGroupWire, WhatBecomesOfARankAfterItsGoodbyeIsNoLoss) {
  on_ranks(2, [](ProcessGroup& group, const Hub& hub) {
    if (group.rank() == 1) {
      Frame goodbye;
      goodbye.kind = FrameKind::goodbye;
      goodbye.number = 1;
      MutexLock lock(hub->mutex);
      hub->frames[0].emplace_back(1, write_frame(goodbye));
    }
    group.barrier().wait();  // what rank 1 says of it comes after its goodbye
    if (group.rank() == 0) group.lose(1, "rank 1 is lost");
    EXPECT_NO_THROW(group.progress());
  });
}

// A number sizes what waits for its turn, so it can't be any.
TEST(ProcessGroupWire, ACollectiveOutOfOrderFailsTheGroup) {
  for (const std::uint64_t number : {std::uint64_t{1}, std::uint64_t{3}, ~std::uint64_t{0}}) {
    const auto causes = causes_after(2, [number](ProcessGroup&, const Hub& hub) {
      Frame frame;
      frame.number = number;
      MutexLock lock(hub->mutex);
      hub->frames[0].emplace_back(1, write_frame(frame));
      hub->changed.notify_all();
    });
    EXPECT_THAT(causes[0], AllOf(HasSubstr("collective " + std::to_string(number) + " over memory from rank 1"),
                                 HasSubstr("collective 2 is next")));
    EXPECT_EQ(causes[0], causes[1]);
  }
}

// The caller frees its buffers when it gets the error.
TEST(ProcessGroupWire, AnErrorComesOnceTheWireHasLetGoOfTheMemory) {
  std::latch over(2);
  on_ranks(2, [&](ProcessGroup& group, const Hub& hub) {
    if (group.rank() == 1) {
      // Says that it has come, and moves nothing.
      Frame frame;
      frame.number = 1;
      frame.record = {.kind = comm::OpKind::all_reduce, .dtype = DType::f32, .count = 100000};
      {
        MutexLock lock(hub->mutex);
        hub->frames[0].emplace_back(1, write_frame(frame));
        hub->changed.notify_all();
      }
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
      EXPECT_TRUE(hub->let_go[0]);
    }
    other.join();
    over.arrive_and_wait();
  });
}

// A library that knows no deadline, and a rank that does not come.
class WaitsForEver final : public Wire {
 public:
  struct Shared {
    Mutex mutex;
    Condition changed;
    bool let_in GUARDED_BY(mutex) = false;
    bool closed GUARDED_BY(mutex) = false;
  };
  explicit WaitsForEver(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::string_view name() const override { return "slow"; }
  std::string_view opening() const override { return "slow_init, which waits for every rank"; }
  void open(Listener&, const Deadline&) override {
    MutexLock lock(shared_->mutex);
    while (!shared_->let_in) shared_->changed.wait(shared_->mutex);
  }
  void send_frame(int, const FrameBytes&) override {}
  void exchange(std::span<const Piece>, std::span<const Piece>) override {}
  void expect(const Piece&, std::uint64_t) override {}
  void deliver(const Piece&, std::uint64_t) override {}
  void finish(int, std::uint64_t) override {}
  std::vector<int> awaited() override { return {}; }
  void wait(const Deadline&) override {}
  void wake() override {}
  void interrupt() override {}
  void let_go() override {}
  void close(const Deadline&) override {
    MutexLock lock(shared_->mutex);
    shared_->closed = true;
    shared_->changed.notify_all();
  }

 private:
  std::shared_ptr<Shared> shared_;
};

TEST(ProcessGroupWire, ALibraryThatWaitsForEverIsLeftToItself) {
  GroupContext context;
  for (int r = 0; r < 2; ++r) context.roster.push_back({r, r, 100 + r, "host" + std::to_string(r), "boot"});
  context.store = std::make_shared<store::HashStore>();
  for (const bool is_lost : {false, true}) {
    const auto shared = std::make_shared<WaitsForEver::Shared>();
    std::shared_ptr<std::function<void()>> join;
    const ThreadMaker keep_join = [&](std::function<void()> body) {
      join = std::make_shared<std::function<void()>>(start_own_thread(std::move(body)));
      return [] { ADD_FAILURE() << "nobody may wait for it"; };
    };
    context.check = [&] {
      if (is_lost) throw PeerLost("rank 1 is lost");
    };
    std::string text;
    try {
      ProcessGroupWire::create("slow", context, std::make_unique<WaitsForEver>(shared),
                               Deadline::after(is_lost ? std::chrono::seconds(40) : std::chrono::seconds(0)),
                               keep_join);
      ADD_FAILURE();
    } catch (const Error& error) {
      text = error.what();
    }
    if (is_lost) {
      EXPECT_EQ(text, "rank 1 is lost");
    } else {
      EXPECT_THAT(text, AllOf(HasSubstr("slow_init, which waits for every rank"), HasSubstr("of 0 s")));
    }
    EXPECT_EQ(context.store.use_count(), 1) << "rank 0's store ends with its owner, not with the library";
    {
      MutexLock lock(shared->mutex);
      shared->let_in = true;
      shared->changed.notify_all();
    }
    (*join)();
    MutexLock lock(shared->mutex);
    EXPECT_TRUE(shared->closed);
  }
}

}  // namespace
}  // namespace lockstep::wire
