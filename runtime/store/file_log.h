// An append-only file of records that processes share under a lock, also over a network file system.
//
// A file begins with a header that says whose it is, so that one left over from an earlier run is recognised. It
// appears with its header or not at all. A record is written as a whole or, if its writer is killed, cut off by the
// next writer. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::store {

// Who made a file.
struct FileOrigin {
  std::string run_id;  // of the job and attempt that it is for; may be empty
  std::string host;
  std::string boot_id;  // tells whether `pid` is a process of this machine, and of this boot
  std::int64_t pid = 0;
  std::int64_t created = 0;  // seconds since 1970

  // "run 'a7', made by pid 4711 on node0 at 2026-11-20 21:05:00 UTC"
  std::string describe() const;
  // True if it was made on this machine by a process that has ended since, by kill(2) and boot id. Then nobody of that
  // run will tidy the file away. False if it can't be known.
  bool maker_has_ended() const;
};

class FileLog {
 public:
  enum class Kind : std::uint8_t { origin = 0, set = 1, append = 2, erase = 3 };
  using Visitor = std::function<void(Kind kind, std::string_view key, std::string_view value)>;

  // Makes a file, mode 0600, in the place of any that is there. Throws SystemError.
  static FileLog create(const std::string& path, const std::string& run_id);
  // Makes a file, or opens the one that is there; fills it if it is empty. Timeout if an empty one stays locked.
  static FileLog open_or_create(const std::string& path, const std::string& run_id, const Deadline& deadline);
  // Opens a file. Nothing if there is none, or an empty one. Throws InvalidArgument if it is another user's,
  // CorruptData if it is no such file.
  static std::optional<FileLog> open(const std::string& path);

  const FileOrigin& origin() const { return origin_; }
  const std::string& path() const { return path_; }

  // Holds the lock of the file for as long as it lives.
  class Lock {
   public:
    Lock(Lock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Lock& operator=(Lock&&) = delete;
    ~Lock();

   private:
    friend class FileLog;
    explicit Lock(int fd) : fd_(fd) {}
    int fd_;
  };
  enum class Access { read, write };
  // Throws Timeout if another process keeps it until the deadline, StoreError if the file was removed or replaced.
  Lock lock(Access access, const Deadline& deadline);

  // Visits the records that were added since the last call. Needs the lock. Throws CorruptData.
  void read_new(const Visitor& visit);
  // Adds a record, visited here too by the next read_new(). Needs the lock for writing, and nothing new to be read.
  void append(Kind kind, std::string_view key, std::string_view value);

  // Removes the file if `path` still is this one.
  void remove();

 private:
  FileLog(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  static std::optional<FileLog> open_file(const std::string& path);
  void write_at_end(std::string_view bytes);
  bool read_origin();

  std::string path_;
  UniqueFd fd_;
  FileOrigin origin_;
  std::uint64_t end_ = 0;  // end of the last record that was read
  std::string buffer_;
};

}  // namespace lockstep::store
