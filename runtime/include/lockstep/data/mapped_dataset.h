// SPDX-License-Identifier: Apache-2.0
// Defines datasets that are files mapped into memory: a file may be larger than the memory, because only the pages of
// the current batches are read.
//
//   MappedTokens tokens("train.bin", {.bytes = 2, .window = 1025, .stride = 1024});   // uint16, as GPT-2's tokens
//   DataLoader loader(tokens, GlobalBatchSampler(tokens.size(), rank, world), {.batch_size = 64, .workers = 2});
//   for (const auto& [ids, window, tokens] : loader) ...
//
// The kernel reads a page from the disk at its first use, and keeps the page in its page cache, which all ranks of a
// host share. A DataLoader announces samples ahead of their use (LoaderOptions::read_ahead, prefetch()), so that the
// kernel reads their pages meanwhile.
//
// Threads: any number of threads may use a dataset at once. Copies of a dataset share the mapping.
// Failure: constructors throw InvalidArgument if the file is missing, unreadable, a folder, empty, or shorter than one
//   window; CorruptData if the file is not a whole number of tokens or records; SystemError if mapping fails. A file
//   must not change while it is mapped: batch() throws CorruptData if the file's size or modification time has changed.
//   If the file is cut short during batch(), or the disk fails, SIGBUS ends the process: a library can't turn SIGBUS
//   into an exception.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::data {

// MappedFile is a file, mapped read-only.
class LOCKSTEP_API MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  std::span<const std::byte> bytes() const&;
  std::span<const std::byte> bytes() const&& = delete;  // name the file first: const MappedFile file(path);
  // Tells the kernel to read the pages of bytes [begin, begin + count), and doesn't wait for them.
  void prefetch(std::size_t begin, std::size_t count) const;
  // Throws CorruptData if the file's size or modification time has changed since the file was mapped.
  void require_unchanged() const;

 private:
  struct LOCKSTEP_LOCAL Mapping;
  std::shared_ptr<const Mapping> mapping_;
};

// TokenBatch is a batch of windows.
struct TokenBatch {
  std::vector<std::int64_t> ids;     // global sample ids
  std::int64_t window = 0;           // number of tokens in a sample
  std::vector<std::int64_t> tokens;  // [ids.size(), window]
};

struct MappedTokensOptions {
  int bytes = 2;  // number of bytes of a token, an unsigned little-endian number: 2 or 4
  // The number of tokens in a sample, at least 1: the context, and one token more as the target of the last token.
  std::int64_t window = 0;
  // The number of tokens from a sample's first token to the next sample's first token. A stride of 0 means `window`.
  std::int64_t stride = 0;
  std::int64_t header = 0;  // number of bytes before the first token
};

// MappedTokens is a dataset of windows of a file of tokens: sample i is the `window` tokens from token i * stride on.
class LOCKSTEP_API MappedTokens {
 public:
  MappedTokens(const std::filesystem::path& path, const MappedTokensOptions& options);

  std::int64_t size() const { return size_; }      // number of samples
  std::int64_t tokens() const { return tokens_; }  // number of tokens in the file
  TokenBatch batch(std::span<const std::int64_t> ids) const;
  // Copies the tokens of sample `id` to `window`, whose size is MappedTokensOptions::window. Does not check that the
  // file is unchanged: see require_unchanged().
  void read(std::int64_t id, std::span<std::int64_t> window) const;
  void prefetch(std::span<const std::int64_t> ids) const;
  // Checks that the file is unchanged, as batch() does first. Programs that read sample by sample call it themselves.
  void require_unchanged() const { file_.require_unchanged(); }

 private:
  std::size_t begin_of(std::int64_t id) const;

  MappedFile file_;
  MappedTokensOptions options_;
  std::int64_t tokens_ = 0;
  std::int64_t size_ = 0;
};

// RecordBatch is a batch of records.
struct RecordBatch {
  std::vector<std::int64_t> ids;   // global sample ids
  std::size_t record = 0;          // number of bytes of a sample
  std::vector<std::byte> records;  // [ids.size(), record]
};

struct MappedRecordsOptions {
  std::int64_t record = 0;  // number of bytes of a sample; at least 1
  std::int64_t header = 0;  // number of bytes before the first record
};

// MappedRecords is a dataset of records that all have one size.
class LOCKSTEP_API MappedRecords {
 public:
  MappedRecords(const std::filesystem::path& path, const MappedRecordsOptions& options);

  std::int64_t size() const { return size_; }
  RecordBatch batch(std::span<const std::int64_t> ids) const;
  // Returns the bytes of sample `id`, which stay valid as long as this object or a copy lives. Does not check that the
  // file is unchanged: see require_unchanged().
  std::span<const std::byte> record(std::int64_t id) const&;
  std::span<const std::byte> record(std::int64_t id) const&& = delete;  // name the dataset first
  void prefetch(std::span<const std::int64_t> ids) const;
  // Checks that the file is unchanged, as batch() does first. Programs that read sample by sample call it themselves.
  void require_unchanged() const { file_.require_unchanged(); }

 private:
  MappedFile file_;
  MappedRecordsOptions options_;
  std::int64_t size_ = 0;
};

}  // namespace lockstep::data
