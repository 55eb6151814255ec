// SPDX-License-Identifier: Apache-2.0
// Messages that are matched by rank and tag, whatever comes before them: on every backend but nccl, where messages run
// in the program's order. Ranks as threads.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/conformance/errors.h"
#include "tests/conformance/memory.h"
#include "tests/support/cause_of.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing::message_matching_test {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

constexpr std::size_t kLarge = 64 << 20;  // 4096 chunks of a channel's window

BufferView view(std::vector<std::uint8_t>& bytes) { return BufferView(std::span(bytes)); }

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
      ASSERT_TRUE(all_are(in, wanted)) << "round " << round;
      sent.wait();
    }
  });
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
              EXPECT_TRUE(all_are(bytes, std::uint8_t{1}));
              EXPECT_TRUE(all_are(others, std::uint8_t{2}));
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

TEST(Messages, OfDifferentSizesAreAMismatchOnBothSides) {
  run_ranks(2, [](const Group& group) {
    std::vector<float> x(20);
    const Cause cause = cause_of<Mismatch>([&] {
      if (group->rank() == 0) group->send(BufferView(std::span(x).first(10)), 1, 7).wait();
      group->recv(BufferView(std::span(x)), 0, 7).wait();
    });
    expect_cause(cause, {.kind = Cause::Kind::mismatch, .reporter = 1});
    EXPECT_EQ(
        golden(cause.text),
        "rank 1 (...) called recv of 20 x float32 from rank 0 with tag 7, but rank 0 (...) sent 10 x float32; both "
        "sides must give one size and type");
  });
}

}  // namespace
}  // namespace lockstep::testing::message_matching_test
