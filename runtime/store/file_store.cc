#include "runtime/store/file_store.h"

#include <fmt/format.h>

#include <limits>

#include "runtime/base/error.h"
#include "runtime/net/backoff.h"
#include "runtime/store/messages.h"

namespace lockstep::store {
namespace {

using Access = FileLog::Access;
using Kind = FileLog::Kind;

// Between two looks at the file. A network file system may show what others write later than that.
net::Backoff look_again() { return net::Backoff(std::chrono::microseconds(200), std::chrono::milliseconds(10)); }

bool is_of(const FileLog& log, const std::string& run_id) { return run_id.empty() || log.origin().run_id == run_id; }

Mismatch other_run(const FileLog& log, const std::string& run_id, std::string_view remedy) {
  return Mismatch(fmt::format("file store {}: it is of {}{}, this is run '{}'; {}", log.path(), log.origin().describe(),
                              log.origin().maker_has_ended() ? " (ended)" : "", run_id, remedy));
}

}  // namespace

std::unique_ptr<FileStore> FileStore::create(const std::string& path, const std::string& run_id,
                                             const FileStoreOptions& options) {
  return std::unique_ptr<FileStore>(new FileStore(FileLog::create(path, run_id), options));
}

std::unique_ptr<FileStore> FileStore::open(const std::string& path, const std::string& run_id, const Deadline& deadline,
                                           const FileStoreOptions& options) {
  net::Backoff backoff = look_again();
  for (;;) {
    auto log = FileLog::open(path);
    if (log && is_of(*log, run_id)) return std::unique_ptr<FileStore>(new FileStore(std::move(*log), options));
    if (backoff.pause(deadline)) continue;
    if (log)
      throw other_run(*log, run_id, fmt::format("{}: the rank that replaces it has not come", deadline.progress()));
    throw Timeout(
        fmt::format("file store {}: there is no such file, {}; the rank that makes it has not come, or sees "
                    "another folder under this name",
                    path, deadline.progress()));
  }
}

std::unique_ptr<FileStore> FileStore::open_or_create(const std::string& path, const std::string& run_id,
                                                     const FileStoreOptions& options) {
  FileLog log = FileLog::open_or_create(path, run_id, Deadline::after(options.lock_timeout));
  if (!is_of(log, run_id)) throw other_run(log, run_id, "remove it, or name another file");
  return std::unique_ptr<FileStore>(new FileStore(std::move(log), options));
}

FileStore::FileStore(FileLog log, const FileStoreOptions& options)
    : options_(options),
      path_(log.path()),
      origin_(log.origin()),
      log_(std::move(log)),
      table_(std::numeric_limits<std::size_t>::max()) {}

std::string FileStore::description() const { return fmt::format("file {}", path_); }

void FileStore::remove() {
  MutexLock guard(mutex_);
  log_.remove();
}

FileLog::Lock FileStore::lock(Access access) {
  try {
    FileLog::Lock held = log_.lock(access, Deadline::after(options_.lock_timeout));
    catch_up();
    return held;
  } catch (const Timeout& error) {
    throw StoreError(error.what());
  }
}

void FileStore::catch_up() {
  log_.read_new([&](Kind kind, std::string_view key, std::string_view value) REQUIRES(mutex_) {
    switch (kind) {
      case Kind::origin: return;
      case Kind::set: return table_.set(key, value);
      case Kind::append: return table_.append(key, value);
      case Kind::erase: table_.erase(key); return;
    }
    throw CorruptData(fmt::format("file store {}: a record of kind {}; it was written by another version of lockstep",
                                  path_, static_cast<int>(kind)));
  });
}

// What is written is applied by being read back, as everybody else's is.
void FileStore::write(Kind kind, std::string_view key, std::string_view value) {
  log_.append(kind, key, value);
  catch_up();
}

void FileStore::set(std::string_view key, std::string_view value) {
  check_sizes(description(), key, value);
  MutexLock guard(mutex_);
  const auto held = lock(Access::write);
  write(Kind::set, key, value);
}

void FileStore::append(std::string_view key, std::string_view value) {
  check_sizes(description(), key, value);
  MutexLock guard(mutex_);
  const auto held = lock(Access::write);
  write(Kind::append, key, value);
}

void FileStore::multi_set(std::span<const std::string> keys, std::span<const std::string> values) {
  check_pairs(description(), keys.size(), values.size());
  for (std::size_t i = 0; i < keys.size(); ++i) check_sizes(description(), keys[i], values[i]);
  MutexLock guard(mutex_);
  const auto held = lock(Access::write);
  for (std::size_t i = 0; i < keys.size(); ++i) write(Kind::set, keys[i], values[i]);
}

std::int64_t FileStore::add(std::string_view key, std::int64_t delta) {
  check_sizes(description(), key, {});
  MutexLock guard(mutex_);
  const auto held = lock(Access::write);
  const std::int64_t sum = add_to_value(description(), key, table_.find(key), delta);
  write(Kind::set, key, std::to_string(sum));
  return sum;
}

std::string FileStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  check_sizes(description(), key, desired);
  MutexLock guard(mutex_);
  const auto held = lock(Access::write);
  const std::string* value = table_.find(key);
  if (value != nullptr ? *value != expected : !expected.empty()) {
    return value != nullptr ? *value : std::string(expected);
  }
  write(Kind::set, key, desired);
  return std::string(desired);
}

bool FileStore::erase(std::string_view key) {
  MutexLock guard(mutex_);
  const auto held = lock(Access::write);
  if (table_.find(key) == nullptr) return false;
  write(Kind::erase, key, {});
  return true;
}

bool FileStore::check(std::span<const std::string> keys) {
  MutexLock guard(mutex_);
  const auto held = lock(Access::read);
  for (const std::string& key : keys) {
    if (table_.find(key) == nullptr) return false;
  }
  return true;
}

std::int64_t FileStore::num_keys() {
  MutexLock guard(mutex_);
  const auto held = lock(Access::read);
  return static_cast<std::int64_t>(table_.size());
}

std::string FileStore::get(std::string_view key, const Deadline& deadline) {
  const std::string name(key);
  return multi_get(std::span(&name, 1), deadline).front();
}

void FileStore::wait(std::span<const std::string> keys, const Deadline& deadline) { multi_get(keys, deadline); }

std::vector<std::string> FileStore::multi_get(std::span<const std::string> keys, const Deadline& deadline) {
  net::Backoff backoff = look_again();
  for (;;) {
    std::vector<std::string> values;
    std::vector<std::string> missing;
    {
      MutexLock guard(mutex_);
      const auto held = lock(Access::read);
      for (const std::string& key : keys) {
        if (const std::string* value = table_.find(key)) {
          values.push_back(*value);
        } else {
          missing.push_back(key);
        }
      }
    }
    if (missing.empty()) return values;
    if (!backoff.pause(deadline)) throw_wait_timeout(description(), keys, missing, deadline);
  }
}

}  // namespace lockstep::store
