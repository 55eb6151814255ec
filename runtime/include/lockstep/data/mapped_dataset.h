// SPDX-License-Identifier: Apache-2.0
// Datasets that are files, mapped into memory: for data beyond memory, read where a batch needs it.
//
//   MappedTokens tokens("train.bin", {.bytes = 2, .window = 1025, .stride = 1024});   // uint16, as GPT-2's tokens
//   DataLoader loader(tokens, GlobalBatchSampler(tokens.size(), rank, world), {.batch_size = 64, .workers = 2});
//   for (const auto& [ids, window, tokens] : loader) ...
//
// Pages come from the disk when they are read first, and stay in the kernel's page cache, which all ranks of a host
// share. A DataLoader says ahead which samples come (LoaderOptions::read_ahead, prefetch()), so that the kernel reads
// them meanwhile.
//
// Threads: any number at once. Copies share the mapping.
// Failure: InvalidArgument for what is no file to read (missing, unreadable, a folder, empty, tokens for no
//   window); CorruptData for a file that is not a whole number of tokens or records; SystemError where mapping fails. A
//   file must not change while it is mapped: batch() looks at its size and time, and throws CorruptData if they are not
//   those at the beginning. One that is cut short within the call, or a disk that fails, ends the process by SIGBUS,
//   which no library can turn into an exception for its program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::data {

// A file, mapped read-only.
class LOCKSTEP_API MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  std::span<const std::byte> bytes() const&;
  std::span<const std::byte> bytes() const&& = delete;  // name the file first: const MappedFile file(path);
  // Tells the kernel to read the pages of bytes [begin, begin + count), and doesn't wait.
  void prefetch(std::size_t begin, std::size_t count) const;
  // CorruptData if the file's size or time is another than when it was mapped.
  void require_unchanged() const;

 private:
  struct LOCKSTEP_LOCAL Mapping;
  std::shared_ptr<const Mapping> mapping_;
};

// A batch of windows.
struct TokenBatch {
  std::vector<std::int64_t> ids;     // global sample ids
  std::int64_t window = 0;           // tokens of a sample
  std::vector<std::int64_t> tokens;  // [ids.size(), window]
};

struct MappedTokensOptions {
  int bytes = 2;            // of a token, an unsigned little-endian number: 2 or 4
  std::int64_t window = 0;  // tokens of a sample: the context and one more, the last one's target. At least 1
  std::int64_t stride = 0;  // tokens from a sample's first to the next sample's first; 0: window
  std::int64_t header = 0;  // bytes before the first token
};

// Windows of a file of tokens: sample i is the `window` tokens from token i * stride on.
class LOCKSTEP_API MappedTokens {
 public:
  MappedTokens(const std::filesystem::path& path, const MappedTokensOptions& options);

  std::int64_t size() const { return size_; }      // samples
  std::int64_t tokens() const { return tokens_; }  // in the file
  TokenBatch batch(std::span<const std::int64_t> ids) const;
  // Writes sample `id` to `window`, which has as many places. Looks at the samples alone: see require_unchanged().
  void read(std::int64_t id, std::span<std::int64_t> window) const;
  void prefetch(std::span<const std::int64_t> ids) const;
  // What batch() begins with, for who reads samples one by one.
  void require_unchanged() const { file_.require_unchanged(); }

 private:
  std::size_t begin_of(std::int64_t id) const;

  MappedFile file_;
  MappedTokensOptions options_;
  std::int64_t tokens_ = 0;
  std::int64_t size_ = 0;
};

// A batch of records.
struct RecordBatch {
  std::vector<std::int64_t> ids;   // global sample ids
  std::size_t record = 0;          // bytes of a sample
  std::vector<std::byte> records;  // [ids.size(), record]
};

struct MappedRecordsOptions {
  std::int64_t record = 0;  // bytes of a sample; at least 1
  std::int64_t header = 0;  // bytes before the first record
};

// A file of records of one size.
class LOCKSTEP_API MappedRecords {
 public:
  MappedRecords(const std::filesystem::path& path, const MappedRecordsOptions& options);

  std::int64_t size() const { return size_; }
  RecordBatch batch(std::span<const std::int64_t> ids) const;
  // Valid as long as this or a copy lives. Looks at the samples alone: see require_unchanged().
  std::span<const std::byte> record(std::int64_t id) const&;
  std::span<const std::byte> record(std::int64_t id) const&& = delete;  // name the dataset first
  void prefetch(std::span<const std::int64_t> ids) const;
  // What batch() begins with, for who reads samples one by one.
  void require_unchanged() const { file_.require_unchanged(); }

 private:
  MappedFile file_;
  MappedRecordsOptions options_;
  std::int64_t size_ = 0;
};

}  // namespace lockstep::data
