// SPDX-License-Identifier: Apache-2.0
// The log that the ranks of a group over NCCL have in the store.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "runtime/comm/nccl/store_log.h"
#include "runtime/store/hash_store.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::nccl_log_test {
namespace {

// One that is in trouble: of some calls it says that they failed, and has done half of these.
class HalfAStore final : public store::HashStore {
 public:
  void set(std::string_view key, std::string_view value) override {
    half_done([&] { HashStore::set(key, value); });
  }
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override {
    std::string stored;
    half_done([&] { stored = HashStore::compare_set(key, expected, desired); });
    return stored;
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    std::int64_t sum = 0;
    half_done([&] { sum = HashStore::add(key, delta); });
    return sum;
  }

 private:
  template <typename Body>
  void half_done(const Body& body) {
    const int turn = calls_++ % 11;
    if (turn == 0) throw StoreError("the test wants this not to be done");
    body();
    if (turn == 5) throw StoreError("the test wants the answer to be lost");
  }
  std::atomic<int> calls_{0};
};

// As a program whose collectives are checked does for days.
TEST(NcclLog, KeepsNothingThatAllHaveRead) {
  constexpr std::int64_t kEntries = 10 * nccl::StoreLog::kChunk;
  const auto store = std::make_shared<store::HashStore>();
  std::array<std::atomic<std::int64_t>, 3> read = {};
  std::array<std::atomic<std::int64_t>, 3> wrong = {};
  std::array<std::optional<nccl::StoreLog>, 3> ranks;
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

// An entry without its text would be the last that anybody reads.
TEST(NcclLog, HasNoHolesWhereTheStoreFails) {
  constexpr int kEntries = 12;  // of each rank
  const auto store = std::make_shared<HalfAStore>();
  std::array<std::array<std::atomic<int>, 3>, 3> read = {};  // by whom, whose
  std::atomic<int> wrong{0};
  std::array<std::optional<nccl::StoreLog>, 3> ranks;
  for (std::size_t r = 0; r < 3; ++r) {
    ranks[r].emplace(store, 3);
    ranks[r]->start([&, r](const std::string& entry) {
      const auto from = static_cast<std::size_t>(entry[0] - '0');
      if (entry != std::to_string(from) + " " + std::to_string(read[r][from]++)) ++wrong;
    });
  }
  for (int k = 0; k < kEntries; ++k) {
    for (std::size_t r = 0; r < 3; ++r) ranks[r]->post(std::to_string(r) + " " + std::to_string(k));
  }
  EXPECT_TRUE(wait_until([&] {
    for (const auto& whose : read) {
      for (const auto& count : whose) {
        if (count < kEntries) return false;
      }
    }
    return true;
  }));
  for (auto& rank : ranks) rank->stop();
  EXPECT_EQ(wrong, 0) << "an entry was lost, came twice, or out of order";
}

}  // namespace
}  // namespace lockstep::testing::nccl_log_test
