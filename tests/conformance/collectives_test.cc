#include <gtest/gtest.h>

#include "tests/support/rank_threads.h"

namespace lockstep::testing {
namespace {

TEST(Quick, AllReduce) {
  for (int n : {1, 2, 3, 4, 8}) {
    for (std::size_t count : {0ul, 1ul, 100ul, 1000ul, 100000ul, 1000003ul}) {
      for (bool arena : {false, true}) {
        run_ranks(n, [&](const std::shared_ptr<ProcessGroup>& group) {
          Arena memory = group->allocate(count * 4);
          std::vector<float> own(count);
          std::span<float> data(arena ? reinterpret_cast<float*>(memory.data) : own.data(), count);
          for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 100 + group->rank());
          group->all_reduce(BufferView(data)).wait();
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(data[i], static_cast<float>(n * (i % 100) + n * (n - 1) / 2)) << n << " " << count << " " << i;
          }
          float x = static_cast<float>(group->rank());
          group->broadcast(BufferView(std::span(&x, 1)), n - 1).wait();
          ASSERT_EQ(x, n - 1);
          group->barrier().wait();
          auto texts = all_gather_text(*group, std::string(group->rank() + 1, 'a'));
          ASSERT_EQ(texts[n - 1].size(), n);
        });
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
