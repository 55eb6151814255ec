// Messages beside collectives: what meets what on its way. Ranks as threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/conformance/memory.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

TEST(Messages, FromAnArenaThatTheReceiverIsStillAllocating) {
  constexpr std::size_t kCount = 5000;
  run_ranks(3, [](const Group& group) {
    const int rank = group->rank();
    const int size = group->size();
    for (int round = 0; round < 200; ++round) {
      std::vector<float> in(kCount);
      Work received = group->recv(BufferView(std::span(in)), (rank + 1) % size);
      Arena arena = group->allocate(kCount * sizeof(float));
      const std::vector<float> out(kCount, static_cast<float>(round * size + rank));
      upload(group->stream(), arena.data, std::as_bytes(std::span(out)));
      Work sent = group->send(BufferView(arena.data, kCount, DType::f32, group->device()), (rank + size - 1) % size);
      received.wait();
      const auto wanted = static_cast<float>(round * size + (rank + 1) % size);
      ASSERT_EQ(std::count(in.begin(), in.end(), wanted), static_cast<std::ptrdiff_t>(kCount)) << "round " << round;
      sent.wait();
    }
  });
}

// A rank that waits for one thing must still push the others: were it to look at them only when it looks whether its
// peers live, these would take longer than the group's timeout.

constexpr std::size_t kLarge = 64 << 20;  // 4096 chunks of a channel's window

BufferView view(std::vector<std::uint8_t>& bytes) { return BufferView(std::span(bytes)); }

TEST(Messages, PassWhileTheSenderWaitsInACollective) {
  run_ranks(4,
            [](const Group& group) {
              std::vector<std::uint8_t> bytes(kLarge, group->rank() == 0 ? 7 : 0);
              Work sent;
              if (group->rank() == 0) sent = group->send(view(bytes), 1);
              if (group->rank() == 1) group->recv(view(bytes), 0).wait();
              group->barrier().wait();
              sent.wait();
              const std::uint8_t wanted = group->rank() < 2 ? 7 : 0;
              EXPECT_EQ(std::count(bytes.begin(), bytes.end(), wanted), static_cast<std::ptrdiff_t>(kLarge));
            },
            {.timeout = 20s});
}

TEST(Messages, PassWhileTheReceiverWaitsForAnother) {
  run_ranks(3,
            [](const Group& group) {
              std::vector<std::uint8_t> bytes(kLarge, static_cast<std::uint8_t>(group->rank()));
              std::uint8_t word = 0;
              const BufferView go(std::span(&word, 1));
              if (group->rank() == 1) group->recv(go, 2).wait();  // not before rank 2 is through
              if (group->rank() != 0) group->send(view(bytes), 0).wait();
              if (group->rank() == 2) group->send(go, 1).wait();
              if (group->rank() != 0) return;
              std::vector<std::uint8_t> others(kLarge);
              Work from_1 = group->recv(view(bytes), 1);
              Work from_2 = group->recv(view(others), 2);
              from_1.wait();
              from_2.wait();
              EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 1), static_cast<std::ptrdiff_t>(kLarge));
              EXPECT_EQ(std::count(others.begin(), others.end(), 2), static_cast<std::ptrdiff_t>(kLarge));
            },
            {.timeout = 20s});
}

TEST(Messages, ToOneselfPassWhileOthersArePending) {
  run_ranks(4,
            [](const Group& group) {
              std::uint8_t word = 0;
              const BufferView go(std::span(&word, 1));
              if (group->rank() != 0) {
                group->barrier().wait();
                if (group->rank() == 1) group->send(go, 0).wait();
                return;
              }
              std::vector<std::uint8_t> out(kLarge, 7);
              std::vector<std::uint8_t> in(kLarge);
              Work sent = group->send(view(out), 0);
              Work received = group->recv(view(in), 0);
              Work last = group->recv(go, 1);
              received.wait();
              sent.wait();
              group->barrier().wait();
              last.wait();
              EXPECT_TRUE(in == out);
            },
            {.timeout = 20s});
}

TEST(Messages, ACollectivePassesWhileARankWaitsForAMessage) {
  constexpr std::size_t kWindows = 512;
  run_ranks(3,
            [](const Group& group) {
              std::vector<std::uint8_t> bytes(kWindows * (128 << 10), group->rank() == 0 ? 7 : 0);
              std::uint8_t word = 0;
              const BufferView go(std::span(&word, 1));
              Work shared = group->broadcast(view(bytes), 0);
              if (group->rank() == 1) group->recv(go, 2).wait();
              shared.wait();
              if (group->rank() == 2) group->send(go, 1).wait();
              EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 7), static_cast<std::ptrdiff_t>(bytes.size()));
            },
            {.timeout = 10s});
}

}  // namespace
}  // namespace lockstep::testing
