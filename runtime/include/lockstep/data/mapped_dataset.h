// SPDX-License-Identifier: Apache-2.0
// Defines datasets that map their files into memory. A file may be larger than the memory, because the kernel reads
// only the pages of the current batches.
//
//   MappedTokens tokens("train.bin", {.bytes = 2, .window = 1025, .stride = 1024});   // uint16, as GPT-2's tokens
//   DataLoader loader(tokens, GlobalBatchSampler(tokens.size(), rank, world), {.batch_size = 64, .workers = 2});
//   for (const auto& [ids, window, tokens] : loader) ...
//
// The kernel reads a page of the file from the disk when the page is first used, and keeps the page in its page cache,
// which all ranks of a host share. A DataLoader calls prefetch() some batches ahead (LoaderOptions::read_ahead), so
// that the kernel reads the pages of a batch before the batch is needed.
//
// Threads: any number of threads may use a mapped dataset at once. Copies of a dataset share the mapping.
// Failure: a mapped dataset's constructor throws InvalidArgument if the file is missing, unreadable, a folder, empty,
//   or shorter than one window. Constructors throw CorruptData if the file does not hold a whole number of tokens or
//   records, and SystemError if mapping fails. The program must not change a file that is mapped: batch() throws
//   CorruptData if the file's size or modification time has changed. If the file is truncated during batch(), or the
//   disk fails, SIGBUS ends the process, because a library can't turn SIGBUS into an exception.
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
  // Tells the kernel to read the pages of bytes [begin, begin + count), and returns before the pages have been read.
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
  // The number of tokens in a sample, at least 1: the length of the context plus one, because a sample's last token is
  // only a target.
  std::int64_t window = 0;
  // The number of tokens from a sample's first token to the next sample's first token. A stride of 0 means `window`.
  std::int64_t stride = 0;
  std::int64_t header = 0;  // number of bytes before the first token
};

// MappedTokens is a dataset whose samples are windows of a file of tokens: sample i consists of the `window` tokens
// that begin at token i * stride.
class LOCKSTEP_API MappedTokens {
 public:
  MappedTokens(const std::filesystem::path& path, const MappedTokensOptions& options);

  std::int64_t size() const { return size_; }      // number of samples
  std::int64_t tokens() const { return tokens_; }  // number of tokens in the file
  TokenBatch batch(std::span<const std::int64_t> ids) const;
  // Copies the tokens of sample `id` to `window`, whose size must be MappedTokensOptions::window. The function read()
  // does not check whether the file has changed; to check this, call require_unchanged().
  void read(std::int64_t id, std::span<std::int64_t> window) const;
  void prefetch(std::span<const std::int64_t> ids) const;
  // Throws CorruptData if the file has changed since the file was mapped. The function batch() calls
  // require_unchanged(), but read() does not.
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
  // Returns the bytes of sample `id`; the bytes stay valid as long as this MappedRecords or a copy of this
  // MappedRecords lives. The function record() does not check whether the file has changed; to check this,
  // call require_unchanged().
  std::span<const std::byte> record(std::int64_t id) const&;
  std::span<const std::byte> record(std::int64_t id) const&& = delete;  // name the dataset first
  void prefetch(std::span<const std::int64_t> ids) const;
  // Throws CorruptData if the file has changed since the file was mapped. The function batch() calls
  // require_unchanged(), but record() does not.
  void require_unchanged() const { file_.require_unchanged(); }

 private:
  MappedFile file_;
  MappedRecordsOptions options_;
  std::int64_t size_ = 0;
};

}  // namespace lockstep::data
