// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/window_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace lockstep::shm::window_writer_test {
namespace {

// `copies` on a machine where a piece takes so long by ordinary and by streaming stores.
void run(StoreChoice& choice, int copies, double ordinary, double streaming) {
  for (int i = 0; i < copies; ++i) {
    if (const auto stores = choice.trial()) choice.note(*stores, *stores == Stores::ordinary ? ordinary : streaming);
  }
}

TEST(StoreChoice, TriesBothNowAndThen) {
  StoreChoice choice;
  int ordinary = 0;
  int streaming = 0;
  for (int i = 0; i < 1280; ++i) {
    const auto stores = choice.trial();
    ordinary += stores == Stores::ordinary ? 1 : 0;
    streaming += stores == Stores::streaming ? 1 : 0;
  }
  EXPECT_EQ(ordinary, 10);
  EXPECT_EQ(streaming, 10);
}

TEST(StoreChoice, StreamsWhereOrdinaryStoresTakeManyTimesAsLong) {
  StoreChoice choice;
  EXPECT_EQ(choice.best(), Stores::ordinary);
  run(choice, 128, 1.0, 1.0);
  EXPECT_EQ(choice.best(), Stores::ordinary);
  // Where streaming saves little in the copy, who reads pays more.
  run(choice, 2560, 1.4, 1.0);
  EXPECT_EQ(choice.best(), Stores::ordinary);
  // A virtual core moves away, and comes back.
  run(choice, 2560, 20.0, 1.0);
  EXPECT_EQ(choice.best(), Stores::streaming);
  run(choice, 2560, 1.0, 1.0);
  EXPECT_EQ(choice.best(), Stores::ordinary);
}

TEST(StoreChoice, OneLongTrialChangesNothing) {
  StoreChoice choice;
  run(choice, 2560, 1.0, 1.0);
  run(choice, 128, 1e6, 1.0);
  EXPECT_EQ(choice.best(), Stores::ordinary);
  run(choice, 2560, 20.0, 1.0);
  ASSERT_EQ(choice.best(), Stores::streaming);
  run(choice, 128, 20.0, 1e6);
  EXPECT_EQ(choice.best(), Stores::streaming);
}

// Bytes that tell their place.
std::vector<std::byte> numbered(std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::byte>(1 + (i * 7 + i / 256) % 255);
  return result;
}

TEST(WindowWriter, CopiesAllAndNothingElseFromAnyAddress) {
  const std::vector<std::byte> source = numbered(64 + 4096);
  alignas(64) std::array<std::byte, 4096 + 128> window;
  for (const Stores stores : {Stores::ordinary, Stores::streaming}) {
    for (std::size_t shift = 0; shift < 64; shift += 3) {
      for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 1000, 4096}) {
        window.fill(std::byte{0});
        copy_by(stores, window.data() + 64, source.data() + shift, bytes);
        EXPECT_TRUE(std::equal(source.begin() + static_cast<std::ptrdiff_t>(shift),
                               source.begin() + static_cast<std::ptrdiff_t>(shift + bytes), window.begin() + 64));
        EXPECT_EQ(std::count(window.begin(), window.begin() + 64, std::byte{0}), 64);
        EXPECT_EQ(std::count(window.begin() + 64 + static_cast<std::ptrdiff_t>(bytes), window.end(), std::byte{0}),
                  static_cast<std::ptrdiff_t>(window.size() - 64 - bytes));
      }
    }
  }
}

// With the pieces that are timed.
TEST(WindowWriter, CopiesAllWhateverIsTimed) {
  const std::vector<std::byte> source = numbered(40000);
  std::vector<std::byte> room(source.size() + 64);
  std::byte* const window = room.data() + (64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64) % 64;
  WindowWriter writer;
  for (int copy = 0; copy < 256; ++copy) {
    for (const std::size_t bytes : {std::size_t{1023}, std::size_t{1025}, std::size_t{8191}, std::size_t{8192},
                                    std::size_t{8193}, source.size()}) {
      std::fill(room.begin(), room.end(), std::byte{0});
      writer.copy(window, source.data(), bytes);
      ASSERT_TRUE(std::equal(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(bytes), window));
      ASSERT_EQ(window[bytes], std::byte{0});
    }
  }
}

}  // namespace
}  // namespace lockstep::shm::window_writer_test
