// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/regular_file.h"
#include "runtime/base/resource_limit.h"
#include "runtime/base/write_at_once.h"
#include "runtime/checkpoint/file_error.h"
#include "runtime/checkpoint/storage.h"

namespace lockstep::checkpoint {
namespace {

using Kind = StorageOperation::Kind;
namespace fs = std::filesystem;

constexpr std::size_t kLongestName = 255;

// The file that a link leads to: the written file replaces that one, and the link stays.
fs::path target_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  const fs::path target = fs::canonical(path, error);
  if (!error) return target;
  if (error.value() != ENOENT) throw file_error("writing", path, "open", error.value());
  return target_of(parent_of(path) / fs::read_symlink(path));  // to a file that is to come
}

}  // namespace

AtomicFile::AtomicFile(fs::path path, Name name) : path_(std::move(path)) {
  std::error_code ignored;
  if (!path_.has_filename() || fs::is_directory(path_, ignored)) {
    throw InvalidArgument(
        fmt::format("writing '{}': this path names a folder; give the path of a file", path_.string()));
  }
  if (name == Name::of_user) {
    const auto type = fs::status(path_, ignored).type();
    is_stream_ = type == fs::file_type::fifo || type == fs::file_type::character;
    if (!is_stream_) path_ = target_of(path_);
  }
  folder_ = parent_of(path_);
  if (is_stream_) {
    // O_NONBLOCK: a pipe that nobody reads must not make the training wait.
    fd_.reset(uninterrupted([&] { return ::open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); }));
    if (fd_) return;
    if (errno != ENXIO) fail("open", errno);
    throw InvalidArgument(fmt::format(
        "writing '{}': nobody reads this pipe; start the program that reads the pipe first", path_.string()));
  }
  require_regular(path_.string());
  observe({.kind = Kind::create, .path = temporary_name()});
  fd_.reset(uninterrupted([&] { return ::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666); }));
  if (fd_) return;
  if (errno == ENOENT || errno == ENOTDIR) {
    throw InvalidArgument(fmt::format("writing '{}': the folder '{}' is not there; make this folder first",
                                      path_.string(), folder_.string()));
  }
  // These errors mean that the file system or the kernel does not know O_TMPFILE.
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOSYS) fail("open", errno);
  const std::string aside = temporary_name();
  fd_.reset(uninterrupted([&] { return ::open(aside.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666); }));
  if (!fd_) fail("open", errno);
  temporary_ = aside;
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty() && owner_.is_here()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;  // of a pipe's size
  constexpr int kPatience = 300'000;                    // ms
  if (!is_stream_ && !may_file_have(written_ + bytes.size())) fail("write", EFBIG);
  observe({.kind = Kind::write, .path = temporary_name(), .bytes = bytes});
  hash_.add(bytes.data(), bytes.size());
  while (!bytes.empty()) {
    const std::string_view piece(reinterpret_cast<const char*>(bytes.data()), std::min(kPiece, bytes.size()));
    const ssize_t written = is_stream_ ? static_cast<ssize_t>(write_within(fd_.get(), piece, kPatience))
                                       : ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (is_stream_ && std::cmp_less(written, piece.size())) {
      fail(errno == EAGAIN ? "its reader has taken nothing for 5 minutes" : "write", errno);
    }
    if (written < 0) fail("write", errno);
    if (written == 0) fail("write", EIO);  // POSIX lets a write of some bytes write none; no file system means it
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    written_ += static_cast<std::uint64_t>(written);
  }
}

void AtomicFile::commit() {
  if (is_stream_) return;
  observe({.kind = Kind::sync_file, .path = temporary_name()});
  if (uninterrupted([&] { return ::fsync(fd_.get()); }) != 0) fail("fsync", errno);
  if (temporary_.empty()) {
    // link(2) can't replace a file, so the name comes in two steps. A file that a killed process left there is complete
    // but was never announced: it may be removed.
    const std::string name = temporary_name();
    const std::string source = fmt::format("/proc/self/fd/{}", fd_.get());
    const auto link = [&] { return ::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW); };
    if (link() != 0 && (errno != EEXIST || ::unlink(name.c_str()) != 0 || link() != 0)) fail("linkat", errno);
    temporary_ = name;
  }
  observe({.kind = Kind::rename, .path = temporary_name(), .to = path_});
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename", errno);
  temporary_.clear();
  sync_folder(folder_);
}

std::string AtomicFile::temporary_name() const {
  const std::string end = fmt::format(".tmp.{}", ::getpid());
  std::string name = path_.filename().string();
  if (name.size() + end.size() > kLongestName) name = fmt::format("{:016x}", hash64(name));
  return fs::path(path_).replace_filename(name + end).string();
}

void AtomicFile::fail(const char* call, int error_number) const {
  throw file_error("writing", path_, call, error_number);
}

}  // namespace lockstep::checkpoint
