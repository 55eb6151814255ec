// SPDX-License-Identifier: Apache-2.0
// Messages and collectives in one order on all ranks: what meets what on its way. Ranks as threads.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tests/conformance/memory.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing::messages_test {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

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
              EXPECT_TRUE(all_are(bytes, wanted));
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
              EXPECT_TRUE(all_are(bytes, std::uint8_t{7}));
            },
            {.timeout = 10s});
}

}  // namespace
}  // namespace lockstep::testing::messages_test
