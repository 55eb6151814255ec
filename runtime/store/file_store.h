// A store in a file, for init_method file://: for ranks that share a folder and no port.
//
// Every write adds a record to the file, under its lock; a wait looks again every few milliseconds. It is made for
// start-up, not for traffic. A file that a rank has removed or replaced is lost to all who have it open: StoreError.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "runtime/base/mutex.h"
#include "runtime/store/file_log.h"
#include "runtime/store/key_table.h"
#include "runtime/store/store.h"

namespace lockstep::store {

struct FileStoreOptions {
  // Longest wait for the file's lock. Processes hold it for microseconds, unless one is stopped while it does.
  std::chrono::nanoseconds lock_timeout = std::chrono::seconds(30);
};

class FileStore : public Store {
 public:
  // Three ways to come to a file. `run_id` names the job and attempt; it may be empty where nobody gave one.
  // All throw InvalidArgument if the file is another user's, CorruptData if it is something else, SystemError.

  // Makes a new file in the place of any that is there, at once and whole. For one rank, which others follow.
  static std::unique_ptr<FileStore> create(const std::string& path, const std::string& run_id,
                                           const FileStoreOptions& options = {});
  // Waits until the file is there and is of `run_id` (of any run if that is empty).
  // At the deadline: Timeout if there is no file; Mismatch if there is one of another run, with who made it and when.
  static std::unique_ptr<FileStore> open(const std::string& path, const std::string& run_id, const Deadline& deadline,
                                         const FileStoreOptions& options = {});
  // Opens the file, or makes it: for ranks that are all equal. Mismatch at once if it is of another run.
  static std::unique_ptr<FileStore> open_or_create(const std::string& path, const std::string& run_id,
                                                   const FileStoreOptions& options = {});

  // Who made the file.
  const FileOrigin& origin() const { return origin_; }
  // Removes the file, unless it was replaced.
  void remove() EXCLUDES(mutex_);

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, const Deadline& deadline) override;
  void wait(std::span<const std::string> keys, const Deadline& deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  bool check(std::span<const std::string> keys) override;
  bool erase(std::string_view key) override;
  void append(std::string_view key, std::string_view value) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) override;
  void multi_set(std::span<const std::string> keys, std::span<const std::string> values) override;
  std::int64_t num_keys() override;
  std::string description() const override;

 private:
  FileStore(FileLog log, const FileStoreOptions& options);

  // The file's lock, and what others have written since.
  FileLog::Lock lock(FileLog::Access access) REQUIRES(mutex_);
  void catch_up() REQUIRES(mutex_);
  void write(FileLog::Kind kind, std::string_view key, std::string_view value) REQUIRES(mutex_);

  const FileStoreOptions options_;
  const std::string path_;
  const FileOrigin origin_;
  Mutex mutex_;
  FileLog log_ GUARDED_BY(mutex_);
  KeyTable table_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::store
