// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/mapped_dataset.h"
#include "runtime/base/io.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::data {
namespace {

UniqueFd open_to_read(const std::filesystem::path& path) {
  UniqueFd file(uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
  if (file) return file;
  throw InvalidArgument(fmt::format("the dataset '{}' can't be opened: {}; check path and permissions", path.string(),
                                    errno_text(errno)));
}

struct stat status_of(const UniqueFd& file, const std::filesystem::path& path) {
  struct stat status = {};
  if (::fstat(file.get(), &status) == 0) return status;
  throw SystemError(fmt::format("the dataset '{}': fstat", path.string()), errno);
}

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

struct MappedFile::Mapping {
  explicit Mapping(std::filesystem::path the_path)
      : path(std::move(the_path)), file(open_to_read(path)), status(status_of(file, path)) {
    if (!S_ISREG(status.st_mode)) {
      throw InvalidArgument(fmt::format("the dataset '{}' is not a regular file; name a file", path.string()));
    }
    if (status.st_size == 0) {
      throw InvalidArgument(fmt::format("the dataset '{}' is empty; was it written to its end?", path.string()));
    }
    bytes = static_cast<std::size_t>(status.st_size);
    data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED) {
      throw SystemError(fmt::format("the dataset '{}': mapping its {} bytes", path.string(), bytes), errno);
    }
  }
  ~Mapping() { ::munmap(data, bytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::filesystem::path path;
  UniqueFd file;
  struct stat status;  // when it was mapped
  void* data = nullptr;
  std::size_t bytes = 0;
};

MappedFile::MappedFile(const std::filesystem::path& path) : mapping_(std::make_shared<const Mapping>(path)) {}

const std::filesystem::path& MappedFile::path() const { return mapping_->path; }

std::span<const std::byte> MappedFile::bytes() const& {
  return {static_cast<const std::byte*>(mapping_->data), mapping_->bytes};
}

// Advice: what the kernel doesn't take changes nothing but the time.
void MappedFile::prefetch(std::size_t begin, std::size_t count) const {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (begin >= mapping_->bytes) return;
  const std::size_t end = begin + std::min(count, mapping_->bytes - begin);
  const std::size_t first = begin / page * page;
  static_cast<void>(::madvise(static_cast<std::byte*>(mapping_->data) + first, end - first, MADV_WILLNEED));
}

void MappedFile::require_unchanged() const {
  const struct stat now = status_of(mapping_->file, mapping_->path);
  if (is_same(now, mapping_->status)) return;
  throw CorruptData(fmt::format(
      "the dataset '{}' has changed while it is read: it had {} bytes, and has {}{}; write another file, and rename it",
      mapping_->path.string(), mapping_->status.st_size, now.st_size,
      now.st_size == mapping_->status.st_size ? ", written since" : ""));
}

}  // namespace lockstep::data
