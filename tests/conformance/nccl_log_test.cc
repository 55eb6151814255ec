// The log that the ranks of a group over NCCL have in the store.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <optional>

#include "runtime/comm/nccl/control.h"
#include "runtime/store/hash_store.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing {
namespace {

// As a program that sends messages for days does.
TEST(NcclLog, KeepsNothingThatAllHaveRead) {
  constexpr std::int64_t kEntries = 10 * nccl::Control::kChunk;
  const auto store = std::make_shared<store::HashStore>();
  std::array<std::atomic<std::int64_t>, 3> read = {};
  std::array<std::atomic<std::int64_t>, 3> wrong = {};
  std::array<std::optional<nccl::Control>, 3> ranks;
  for (std::size_t r = 0; r < 3; ++r) {
    ranks[r].emplace(store, 3);
    ranks[r]->start([&, r](const std::string& entry) {
      if (entry != std::to_string(read[r]++)) ++wrong[r];
    });
  }
  for (std::int64_t k = 0; k < kEntries; ++k) ranks[0]->post(std::to_string(k));
  EXPECT_TRUE(wait_until([&] { return read[0] == kEntries && read[1] == kEntries && read[2] == kEntries; }));
  // The count of entries is left.
  EXPECT_TRUE(wait_until([&] { return store->num_keys() == 1; })) << store->num_keys() << " keys are left";
  for (auto& rank : ranks) rank->stop();
  for (const auto& count : wrong) EXPECT_EQ(count, 0) << "an entry was lost, or came out of order";
}

}  // namespace
}  // namespace lockstep::testing
