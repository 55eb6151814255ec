// SPDX-License-Identifier: Apache-2.0
// Memory that the ranks of a host share, and how it is written.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/process_token.h"
#include "runtime/base/resource_limit.h"
#include "runtime/comm/shm/arena.h"
#include "runtime/comm/shm/control.h"
#include "runtime/comm/shm/liveness.h"
#include "runtime/comm/shm/memory.h"
#include "runtime/comm/shm/window_writer.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_to.h"

namespace lockstep::shm::memory_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;

TEST(Memory, IsCommittedSealedAndZero) {
  UniqueFd fd = create_memory("test", 100000);
  struct stat status {};
  ASSERT_EQ(fstat(fd.get(), &status), 0);
  EXPECT_EQ(status.st_size, 100000);
  EXPECT_GE(status.st_blocks * 512, 100000) << "its pages are not there yet";
  EXPECT_NE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(ftruncate(fd.get(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd.get(), 1 << 20), -1);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1) << "nobody can seal it further";
  const auto mapping = Mapping::of(std::move(fd), 100000);
  EXPECT_TRUE(std::all_of(mapping->data(), mapping->data() + 100000, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Memory, OneMappingPerProcess) {
  UniqueFd fd = create_memory("test", 4096);
  UniqueFd duplicate(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  UniqueFd third(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  const auto one = Mapping::of(std::move(fd), 4096);
  EXPECT_EQ(Mapping::of(std::move(duplicate), 4096), one);
  const auto other = Mapping::of(create_memory("other", 4096), 4096);
  EXPECT_NE(other, one);
  EXPECT_NE(other->data(), one->data());
  EXPECT_THROW(Mapping::of(std::move(third), 8192), CorruptData);
}

TEST(Memory, TooMuchIsRefusedWithoutTakingAny) {
  const std::uint64_t available = available_memory();
  ASSERT_LT(available, std::uint64_t{1} << 46);
  expect_text(error_of<BackendUnavailable>([&] { create_memory("test", std::size_t{1} << 46); }),
              {"are available, of which 67.1 MB are kept back for others"});
  EXPECT_GT(available_memory(), available / 2);
}

// Memory of this kind is a file to the kernel, and one that grows beyond the limit ends the process with SIGXFSZ.
TEST(Memory, TheLimitOnFileSizesIsLookedAtFirst) {
  const lockstep::testing::LimitedTo small(RLIMIT_FSIZE, 1 << 20);
  expect_text(error_of<BackendUnavailable>([&] { create_memory("test", 2 << 20); }),
              {"the limit on a file's size, which also holds for shared memory, is 1.0 MB", "ulimit -f unlimited"});
  EXPECT_TRUE(create_memory("test", 1 << 20));
}

TEST(ControlBlock, FitsItsMemoryAndIsOfSoManyRanks) {
  for (const int ranks : {1, 2, 8, 17}) {
    const auto mapping =
        Mapping::of(create_memory("test", ControlBlock::bytes_for(ranks)), ControlBlock::bytes_for(ranks));
    ControlBlock::format(mapping->data(), ranks);
    const ControlBlock control(mapping->data(), ranks);
    for (int r = 0; r < ranks; ++r) {
      EXPECT_EQ(control.words(r).started.load(), 0u);
      EXPECT_LE(control.channel_window(r, ranks - 1, 1) + control.channel_window_bytes(),
                mapping->data() + mapping->bytes());
    }
    EXPECT_THROW(ControlBlock(mapping->data(), ranks + 1), BackendUnavailable);
  }
}

TEST(Arenas, AreFoundByAddressUntilAllHaveDroppedThem) {
  ArenaTable table(1, 2);
  const std::size_t bytes = ArenaTable::file_bytes(2, 1000);
  auto memory = Mapping::of(create_memory("test", bytes), bytes);
  std::weak_ptr<Mapping> alive = memory;
  ArenaTable peer(0, 2);
  Arena theirs = peer.add(memory, 1000);
  Arena mine = table.add(std::move(memory), 1000);
  const ArenaOffset place = table.find(BufferView(mine.data + 40, 10, DType::f32));
  EXPECT_EQ(place.arena, 0);
  EXPECT_EQ(place.offset, 40u);
  EXPECT_EQ(table.address(0, place), theirs.data + 40);
  EXPECT_EQ(table.find(BufferView(mine.data + 996, 2, DType::f32)).arena, -1) << "runs out of the slice";
  EXPECT_EQ(table.find(BufferView(theirs.data, 1, DType::f32)).arena, -1) << "is the peer's slice";

  mine = {};
  EXPECT_EQ(table.address(0, place), theirs.data + 40) << "the peer still has it";
  theirs = {};
  for (ArenaTable* each : {&table, &peer}) each->forget_dropped();
  EXPECT_TRUE(alive.expired());
  EXPECT_FALSE(table.knows({1, 0}));
  EXPECT_THROW(table.address(0, {1, 0}), CorruptData);
  EXPECT_THROW(table.address(0, place), CorruptData);
}

TEST(Liveness, RanksOfThisProcessAreAlive) {
  const auto mapping = Mapping::of(create_memory("test", ControlBlock::bytes_for(2)), ControlBlock::bytes_for(2));
  ControlBlock::format(mapping->data(), 2);
  const ControlBlock control(mapping->data(), 2);
  control.info(0).process = process_token();
  control.info(1).process = process_token() + 1;  // of another process, which holds no lock
  hold_life_lock(mapping->fd(), 0);
  EXPECT_FALSE(process_is_gone(mapping->fd(), control, 0));
  EXPECT_TRUE(process_is_gone(mapping->fd(), control, 1));
}

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

}  // namespace
}  // namespace lockstep::shm::memory_test
