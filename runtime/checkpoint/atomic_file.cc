// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/resource_limit.h"
#include "runtime/checkpoint/file_error.h"
#include "runtime/checkpoint/storage.h"

namespace lockstep::checkpoint {
namespace {

using Kind = StorageOperation::Kind;

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), folder_(path_.has_parent_path() ? path_.parent_path() : ".") {
  std::error_code ignored;
  if (!path_.has_filename() || std::filesystem::is_directory(path_, ignored)) {
    throw InvalidArgument(fmt::format("writing '{}': this names a folder; give the file a name", path_.string()));
  }
  observe({.kind = Kind::create, .path = temporary_name()});
  fd_.reset(uninterrupted([&] { return ::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666); }));
  if (fd_) return;
  if (errno == ENOENT || errno == ENOTDIR) {
    throw InvalidArgument(
        fmt::format("writing '{}': the folder '{}' is not there; make it first", path_.string(), folder_.string()));
  }
  // EOPNOTSUPP where the file system can't, EISDIR where the kernel doesn't know O_TMPFILE.
  if (errno != EOPNOTSUPP && errno != EISDIR) fail("open", errno);
  const std::string name = temporary_name();
  fd_.reset(uninterrupted([&] { return ::open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666); }));
  if (!fd_) fail("open", errno);
  temporary_ = name;
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty() && owner_.is_here()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  // A write beyond it would end the process with SIGXFSZ.
  const auto largest = resource_limit(RLIMIT_FSIZE);
  if (largest && written_ + bytes.size() > *largest) fail("write", EFBIG);
  observe({.kind = Kind::write, .path = temporary_name(), .bytes = bytes});
  hash_.add(bytes.data(), bytes.size());
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", errno);
    if (written == 0) fail("write", EIO);  // POSIX lets a write of some bytes write none; no file system means it
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    written_ += static_cast<std::uint64_t>(written);
  }
}

void AtomicFile::commit() {
  observe({.kind = Kind::sync_file, .path = temporary_name()});
  if (uninterrupted([&] { return ::fsync(fd_.get()); }) != 0) fail("fsync", errno);
  if (temporary_.empty()) {
    // link(2) can't replace a file, so the name comes in two steps. What lies there from a killed process is complete
    // but was never told to anybody: it may go.
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

std::string AtomicFile::temporary_name() const { return fmt::format("{}.tmp.{}", path_.string(), ::getpid()); }

void AtomicFile::fail(const char* call, int error_number) const {
  throw file_error("writing", path_, call, error_number);
}

}  // namespace lockstep::checkpoint
