// Messages beside collectives: what meets what on its way. Ranks as threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

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
      const std::span<float> out(reinterpret_cast<float*>(arena.data), kCount);
      std::fill(out.begin(), out.end(), static_cast<float>(round * size + rank));
      Work sent = group->send(BufferView(out), (rank + size - 1) % size);
      received.wait();
      const auto wanted = static_cast<float>(round * size + (rank + 1) % size);
      ASSERT_EQ(std::count(in.begin(), in.end(), wanted), static_cast<std::ptrdiff_t>(kCount)) << "round " << round;
      sent.wait();
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
