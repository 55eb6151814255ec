#include "runtime/store/file_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <vector>

#include "proto/fields.h"
#include "runtime/base/environment.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/host.h"
#include "runtime/net/backoff.h"

namespace lockstep::store {
namespace {

using proto::Field;

constexpr std::string_view kMagic = "lockstep store 1\n";
// Kind, key, value, and the hash of these as text.
constexpr Field kBody[] = {Field::u8, Field::key, Field::value};
constexpr Field kChecksum[] = {Field::value};
constexpr Field kRecord[] = {Field::u8, Field::key, Field::value, Field::value};
constexpr proto::Limits kLimits;
constexpr std::size_t kReadBytes = std::size_t{64} << 10;

std::string checksum(std::string_view body) { return fmt::format("{:016x}", hash64(body)); }

std::string encode(FileLog::Kind kind, std::string_view key, std::string_view value) {
  std::string bytes;
  proto::write_fields(bytes, kBody, {{key}, {value}, static_cast<std::int64_t>(kind)});
  const std::string sum = checksum(bytes);
  proto::write_fields(bytes, kChecksum, {{}, {sum}, 0});
  return bytes;
}

std::string encode_origin(const std::string& run_id) {
  const std::string made =
      fmt::format("{}\n{}\n{}\n{}", host_name(), boot_id(), ::getpid(), static_cast<std::int64_t>(std::time(nullptr)));
  return std::string(kMagic) + encode(FileLog::Kind::origin, run_id, made);
}

[[noreturn]] void throw_system(const std::string& path, const char* operation, int error) {
  throw SystemError(fmt::format("file store {}: {}", path, operation), error);
}

// A new file next to `path`, with its origin written. It gets its name when it is complete.
std::string make_draft(const std::string& path, const std::string& run_id) {
  static std::atomic<unsigned> next{0};
  const std::string draft = fmt::format("{}.new.{}.{}.{}", path, host_name(), ::getpid(), next++);
  const UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) throw_system(draft, "create (does its folder exist, and may this user write there?)", errno);
  const std::string origin = encode_origin(run_id);
  for (std::string_view bytes = origin; !bytes.empty();) {
    const ssize_t written = ::write(fd.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      const int error = errno;
      ::unlink(draft.c_str());
      throw_system(draft, "write", error);
    }
  }
  return draft;
}

FileOrigin parse_origin(std::string_view run_id, std::string_view made) {
  std::vector<std::string> lines;
  while (lines.size() < 4) {
    lines.emplace_back(made.substr(0, made.find('\n')));
    made.remove_prefix(std::min(made.size(), lines.back().size() + 1));
  }
  return {std::string(run_id), lines[0], lines[1], parse_int(lines[2]).value_or(0), parse_int(lines[3]).value_or(0)};
}

}  // namespace

std::string FileOrigin::describe() const {
  return fmt::format("run '{}', made by pid {} on {} at {:%Y-%m-%d %H:%M:%S} UTC", run_id, pid, host,
                     fmt::gmtime(static_cast<std::time_t>(created)));
}

bool FileOrigin::maker_has_ended() const {
  if (host != host_name() || pid <= 0) return false;
  return boot_id != lockstep::boot_id() || (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH);
}

FileLog::Lock::~Lock() {
  // Can only fail for a descriptor that isn't one.
  if (fd_ >= 0) ::flock(fd_, LOCK_UN);
}

FileLog FileLog::create(const std::string& path, const std::string& run_id) {
  const std::string draft = make_draft(path, run_id);
  // Opened before it gets its name, so that it is this one whatever happens to the name.
  auto log = open(draft);
  if (!log) throw StoreError(fmt::format("file store {}: it was removed as soon as it was written", draft));
  if (::rename(draft.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(draft.c_str());
    throw_system(path, "rename into place", error);
  }
  log->path_ = path;
  return std::move(*log);
}

FileLog FileLog::open_or_create(const std::string& path, const std::string& run_id, const Deadline& deadline) {
  net::Backoff backoff;
  do {
    if (auto existing = open(path)) return std::move(*existing);
    if (auto empty = open_file(path)) {
      // One that the user made, with mktemp perhaps. Whoever has its lock fills it.
      const Lock lock = empty->lock(Access::write, deadline);
      if (!empty->read_origin()) {
        empty->write_at_end(encode_origin(run_id));
        empty->read_origin();
      }
      return std::move(*empty);
    }
    const std::string draft = make_draft(path, run_id);
    const int linked = ::link(draft.c_str(), path.c_str());
    const int error = errno;
    ::unlink(draft.c_str());
    if (linked != 0 && error != EEXIST) throw_system(path, "link into place", error);
  } while (backoff.pause(deadline));
  throw Timeout(
      fmt::format("file store {}: it is there to be made and not there to be opened, {}; is it a dangling link?", path,
                  deadline.progress()));
}

std::optional<FileLog> FileLog::open(const std::string& path) {
  auto log = open_file(path);
  if (log && !log->read_origin()) return std::nullopt;
  return log;
}

std::optional<FileLog> FileLog::open_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT) return std::nullopt;
    throw_system(path, "open", errno);
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_system(path, "fstat", errno);
  if (!S_ISREG(info.st_mode)) throw InvalidArgument(fmt::format("file store {}: it is not a regular file", path));
  if (info.st_uid != ::geteuid()) {
    throw InvalidArgument(
        fmt::format("file store {}: it belongs to user {}, this process is user {}; name a file in a "
                    "folder of your own",
                    path, info.st_uid, ::geteuid()));
  }
  return FileLog(path, std::move(fd));
}

// False if the origin isn't there: the file is empty, or its writer is at it or was killed. Needs no lock.
bool FileLog::read_origin() {
  std::string magic(kMagic.size(), '\0');
  ssize_t count = 0;
  do {
    count = ::pread(fd_.get(), magic.data(), magic.size(), 0);
  } while (count < 0 && errno == EINTR);
  if (count < 0) throw_system(path_, "read", errno);
  magic.resize(static_cast<std::size_t>(count));
  if (!kMagic.starts_with(magic)) {
    throw CorruptData(
        fmt::format("file store {}: it is not a file of a lockstep store, and is left alone; name another "
                    "file, or remove it",
                    path_));
  }
  bool found = false;
  end_ = kMagic.size();
  if (magic.size() == kMagic.size()) {
    read_new([&](Kind kind, std::string_view key, std::string_view value) {
      if (kind != Kind::origin) return;
      found = true;
      origin_ = parse_origin(key, value);
    });
  }
  // Records behind the origin are for the caller's first read_new().
  end_ = found ? kMagic.size() : 0;
  return found;
}

FileLog::Lock FileLog::lock(Access access, const Deadline& deadline) {
  const int operation = (access == Access::write ? LOCK_EX : LOCK_SH) | LOCK_NB;
  // Locks are held for microseconds; a blocking flock(2) would wait for a stopped holder without end.
  net::Backoff backoff(std::chrono::microseconds(50), std::chrono::milliseconds(2));
  while (::flock(fd_.get(), operation) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) throw_system(path_, "flock (does its file system support locks?)", errno);
    if (!backoff.pause(deadline)) {
      throw Timeout(fmt::format("file store {}: another process has kept its lock, {}; it may be stopped", path_,
                                deadline.progress()));
    }
  }
  Lock held(fd_.get());
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw_system(path_, "fstat", errno);
  if (info.st_nlink == 0) {
    throw StoreError(
        fmt::format("file store {}: it was removed or replaced while it was in use; the rank that made it has "
                    "ended, or another run uses the same file",
                    path_));
  }
  return held;
}

void FileLog::read_new(const Visitor& visit) {
  // A record may be far larger than one read. `buffer_` begins at end_.
  buffer_.clear();
  proto::FieldReader reader;
  bool started = false;
  std::size_t done = 0;
  for (;;) {
    if (!started) reader.start(kRecord, 0);
    started = true;
    const std::string_view rest = std::string_view(buffer_).substr(done);
    const proto::Status status = reader.read(rest, kLimits);
    if (status == proto::Status::ok) {
      proto::Contents contents;
      reader.contents(rest, contents);
      const std::size_t body = reader.end() - (8 + contents.values[1].size());
      if (contents.values[1] != checksum(rest.substr(0, body))) {
        throw CorruptData(
            fmt::format("file store {}: the record at byte {} was changed: its hash is wrong; remove the "
                        "file and start the job again",
                        path_, end_));
      }
      done += reader.end();
      end_ += reader.end();
      started = false;
      visit(static_cast<Kind>(contents.number), contents.keys[0], contents.values[0]);
      continue;
    }
    if (status == proto::Status::malformed) {
      throw CorruptData(
          fmt::format("file store {}: the record at byte {} is none: {}; remove the file and start the job "
                      "again",
                      path_, end_, reader.reason()));
    }
    const std::size_t had = buffer_.size();
    buffer_.resize(had + kReadBytes);
    const ssize_t count = ::pread(fd_.get(), buffer_.data() + had, kReadBytes, static_cast<off_t>(end_ + (had - done)));
    const int error = errno;
    buffer_.resize(had + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count < 0 && error != EINTR) throw_system(path_, "read", error);
    // The rest, if any, is what a killed writer has left.
    if (count == 0) return;
  }
}

void FileLog::append(Kind kind, std::string_view key, std::string_view value) {
  write_at_end(encode(kind, key, value));
}

void FileLog::write_at_end(std::string_view bytes) {
  // Cuts off what a killed writer has left behind the last record.
  if (::ftruncate(fd_.get(), static_cast<off_t>(end_)) != 0) throw_system(path_, "ftruncate", errno);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written =
        ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(end_ + done));
    if (written >= 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      throw_system(path_, "write", errno);  // A part of a record that is there is cut off by the next writer.
    }
  }
}

void FileLog::remove() {
  struct stat mine {};
  struct stat named {};
  if (::fstat(fd_.get(), &mine) != 0) throw_system(path_, "fstat", errno);
  if (::stat(path_.c_str(), &named) != 0) {
    if (errno == ENOENT) return;
    throw_system(path_, "stat", errno);
  }
  if (mine.st_dev != named.st_dev || mine.st_ino != named.st_ino) return;
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) throw_system(path_, "unlink", errno);
}

}  // namespace lockstep::store
