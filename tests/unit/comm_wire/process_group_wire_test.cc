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

}  // namespace
}  // namespace lockstep::wire
