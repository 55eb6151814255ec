// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/mapped_dataset.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/data/data_loader.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/temporary_folder.h"

// What the library asks of the kernel by madvise, for it goes through this one; and what the kernel says.
namespace {
struct Advice {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  int advice = 0;
  long result = -1;
};
std::vector<Advice>& advised() {
  thread_local std::vector<Advice> list;
  return list;
}
}  // namespace
extern "C" int madvise(void* begin, std::size_t bytes, int advice) noexcept {
  const long result = ::syscall(SYS_madvise, begin, bytes, advice);
  advised().push_back({static_cast<const std::byte*>(begin), bytes, advice, result});
  return static_cast<int>(result);
}

namespace lockstep::data::mapped_dataset_test {
namespace {

using lockstep::testing::error_of, lockstep::testing::expect_message, lockstep::testing::expect_text;
using Ids = std::vector<std::int64_t>;

class MappedDataset : public ::testing::Test {
 protected:
  // A file of `header` zeros and the numbers first, first + 1, ...
  template <typename Token>
  std::filesystem::path write(const char* name, int count, Token first = 0, std::size_t header = 0) const {
    std::string bytes(header, '\0');
    for (int i = 0; i < count; ++i) {
      const auto token = static_cast<Token>(first + static_cast<Token>(i));
      bytes.append(reinterpret_cast<const char*>(&token), sizeof(token));
    }
    return folder_.write(name, bytes);
  }

  const lockstep::testing::TemporaryFolder folder_;
};

TEST_F(MappedDataset, OfTokensHasWindows) {
  const MappedTokens tokens(write<std::uint16_t>("u16", 100, 65500), {.bytes = 2, .window = 9, .stride = 8});
  EXPECT_EQ(tokens.tokens(), 100);
  EXPECT_EQ(tokens.size(), 12) << "the last begins at 88, one at 96 would end behind the file";
  const TokenBatch batch = tokens.batch(Ids{11, 0});
  EXPECT_EQ(batch.ids, (Ids{11, 0}));
  EXPECT_EQ(batch.window, 9);
  ASSERT_EQ(batch.tokens.size(), 18u);
  for (std::int64_t i = 0; i < 9; ++i) {
    EXPECT_EQ(batch.tokens[static_cast<std::size_t>(i)], (65500 + 88 + i) % 65536) << "unsigned";
    EXPECT_EQ(batch.tokens[static_cast<std::size_t>(9 + i)], 65500 + i);
  }
  EXPECT_TRUE(tokens.batch({}).tokens.empty());
}

TEST_F(MappedDataset, OfLongerTokensBehindAHeaderHasThemToo) {
  const std::uint32_t first = 4000000000;
  const MappedTokens tokens(write<std::uint32_t>("u32", 10, first, 1023), {.bytes = 4, .window = 5, .header = 1023});
  EXPECT_EQ(tokens.size(), 2) << "windows don't overlap unless a stride says so";
  EXPECT_EQ(tokens.batch(Ids{1}).tokens, (Ids{4000000005, 4000000006, 4000000007, 4000000008, 4000000009}));
}

TEST_F(MappedDataset, OfRecordsHasTheirBytes) {
  const MappedRecords records(write<std::uint8_t>("records", 30, 0, 6), {.record = 10, .header = 6});
  EXPECT_EQ(records.size(), 3);
  EXPECT_EQ(records.record(2)[9], std::byte{29});
  const RecordBatch batch = records.batch(Ids{2, 1});
  EXPECT_EQ(batch.record, 10u);
  ASSERT_EQ(batch.records.size(), 20u);
  EXPECT_EQ(batch.records[0], std::byte{20});
  EXPECT_EQ(batch.records[10], std::byte{10});
  expect_message("data", "a record behind the last", error_of<InvalidArgument>([&] { records.batch(Ids{3}); }));
}

// The samples that a loader tells it ahead, and those it has read.
struct Told {
  static constexpr std::int64_t kSamples = 60, kBatch = 2, kAhead = 2;
  struct Log {
    std::mutex mutex;
    std::vector<Ids> told;
    bool was_ahead = true;
  };
  std::shared_ptr<Log> log = std::make_shared<Log>();
  std::int64_t size() const { return kSamples; }
  void prefetch(std::span<const std::int64_t> ids) const {
    const std::lock_guard lock(log->mutex);
    log->told.emplace_back(ids.begin(), ids.end());
  }
  // In order: the first of batch i is sample i * kBatch.
  Ids batch(std::span<const std::int64_t> ids) const {
    const std::lock_guard lock(log->mutex);
    const std::int64_t ahead = ids[0] + kAhead * kBatch;
    log->was_ahead &= ahead >= kSamples || std::any_of(log->told.begin(), log->told.end(),
                                                       [&](const Ids& told) { return told[0] == ahead; });
    return {ids.begin(), ids.end()};
  }
};

TEST_F(MappedDataset, IsToldAheadWhatComes) {
  const GlobalBatchSampler sampler(Told::kSamples, 0, 1, {.global_batch = Told::kBatch, .shuffle = false});
  for (const int workers : {0, 1, 3}) {
    const Told told;
    std::vector<Ids> batches;
    DataLoader loader(told, sampler, {.workers = workers, .read_ahead = Told::kAhead});
    for (const Ids& batch : loader) batches.push_back(batch);
    EXPECT_EQ(batches.size(), 30u);
    EXPECT_TRUE(told.log->was_ahead) << workers << " workers: of each batch the one two batches on was told before";
    // Several workers tell batches in an order of their own, each once.
    if (workers > 1) std::sort(told.log->told.begin(), told.log->told.end());
    EXPECT_EQ(told.log->told, batches) << workers << " workers";
    DataLoader silent(told, sampler, {.workers = workers, .read_ahead = 0});
    for (const auto& batch : silent) static_cast<void>(batch);
    EXPECT_EQ(told.log->told.size(), 30u) << "nothing more";
  }
}

TEST_F(MappedDataset, AdvisesTheKernelOfTheSamplesPages) {
  constexpr std::int64_t kRecord = 6000, kRecords = 100;
  const MappedRecords records(write<std::uint8_t>("large", kRecord * kRecords + 5, 0, 0),
                              {.record = kRecord, .header = 5});
  const std::byte* const file = records.record(0).data() - 5;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  advised().clear();
  records.prefetch(Ids{0, 99, 50, -5, 100, 4000});  // a hint: what isn't there is no error
  ASSERT_EQ(advised().size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto begin = static_cast<std::size_t>(5 + Ids{0, 99, 50}[i] * kRecord);
    EXPECT_EQ(advised()[i].begin, file + begin / page * page) << "the page that it begins in";
    EXPECT_EQ(advised()[i].begin + advised()[i].bytes, file + begin + kRecord) << "to its end";
    EXPECT_EQ(advised()[i].advice, MADV_WILLNEED);
    EXPECT_EQ(advised()[i].result, 0);
  }
  const MappedTokens tokens(folder_ / "large", {.bytes = 2, .window = 4096, .stride = 4096, .header = 5});
  advised().clear();
  tokens.prefetch(Ids{1});
  ASSERT_EQ(advised().size(), 1u);
  EXPECT_EQ(advised()[0].bytes, 8192 + (5 + 8192) % page);
}

TEST_F(MappedDataset, NamesAFileThatCantBeOne) {
  const auto refused = [](const char* what, const std::filesystem::path& path, const MappedTokensOptions& options) {
    expect_message("data", what, error_of<Error>([&] { MappedTokens(path, options); }));
  };
  const auto refused_records = [](const char* what, const std::filesystem::path& path, const auto& options) {
    expect_message("data", what, error_of<Error>([&] { MappedRecords(path, options); }));
  };
  const auto three = write<std::uint16_t>("three", 3), odd = write<std::uint8_t>("odd", 7);
  refused("no file", folder_ / "none", {.window = 4});
  refused("a folder", folder_, {.window = 4});
  refused("an empty file", write<std::uint16_t>("empty", 0), {.window = 4});
  refused("a file of less than a window", three, {.window = 4});
  refused("a header of the whole file", three, {.window = 2, .header = 6});
  refused("tokens of 3 bytes", three, {.bytes = 3, .window = 4});
  refused("no window", three, {});
  refused("half a token at the end", odd, {.window = 2});
  refused_records("records of 0 bytes", three, MappedRecordsOptions{});
  refused_records("a part of a record at the end", odd, MappedRecordsOptions{.record = 3, .header = 2});
  EXPECT_THROW(MappedTokens(odd, {.window = 2}), CorruptData);
}

TEST_F(MappedDataset, NamesAFileThatChangesUnderneath) {
  const auto path = write<std::uint16_t>("u16", 50000);
  const MappedTokens tokens(path, {.window = 10});
  EXPECT_EQ(tokens.batch(Ids{4999}).tokens.front(), 49990);
  tokens.require_unchanged();
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::hours(1));
  expect_text(error_of<CorruptData>([&] { tokens.require_unchanged(); }),
              {"u16' changed while it was being read: it had 100000 bytes, and has 100000, written since"});
  std::filesystem::resize_file(path, 1000);
  expect_text(error_of<CorruptData>([&] { tokens.batch(Ids{4999}); }),
              {"u16' changed while it was being read: it had 100000 bytes, and has 1000"});
}

TEST_F(MappedDataset, StaysTheFileThatItWasWhereAnotherTakesItsName) {
  const auto path = write<std::uint16_t>("u16", 100);
  const MappedTokens tokens(path, {.window = 10});
  std::filesystem::rename(write<std::uint16_t>("other", 100, 500), path);
  EXPECT_EQ(tokens.batch(Ids{1}).tokens.front(), 10);
}

}  // namespace
}  // namespace lockstep::data::mapped_dataset_test
