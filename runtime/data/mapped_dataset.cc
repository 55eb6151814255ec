// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/mapped_dataset.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/text.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::data {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are copied as they are");

// The units of `bytes` in the file behind its header.
std::int64_t count_units(const MappedFile& file, std::int64_t bytes, std::int64_t header, const char* unit) {
  const auto size = static_cast<std::int64_t>(file.bytes().size());
  if (header < 0 || header >= size) {
    throw InvalidArgument(
        fmt::format("the dataset '{}' has {} bytes, but its header was said to have {} bytes before the first {}; give "
                    "the header's true length",
                    file.path().string(), size, header, unit));
  }
  if ((size - header) % bytes != 0) {
    throw CorruptData(
        fmt::format("the dataset '{}' has {} bytes after its header, which are not a whole number of {}s of {} bytes; "
                    "write the file again if it was cut short, or give the true size of {}s",
                    file.path().string(), size - header, unit, bytes, unit));
  }
  return (size - header) / bytes;
}

void check_sample(const MappedFile& file, std::int64_t id, std::int64_t size) {
  if (id >= 0 && id < size) return;
  throw InvalidArgument(fmt::format(
      "the dataset '{}': sample {} was asked for, but it has {} samples; give the sampler the dataset's size()",
      file.path().string(), id, size));
}

template <typename Token>
void widen(const std::byte* from, std::span<std::int64_t> window) {
  for (std::int64_t& to : window) {
    Token token;
    std::memcpy(&token, from, sizeof(token));
    to = token;
    from += sizeof(token);
  }
}

const MappedTokensOptions& checked(const MappedTokensOptions& options) {
  std::string problem = first_too_small({{"window", options.window, 1}, {"stride", options.stride, 0}});
  if (options.bytes != 2 && options.bytes != 4) problem = fmt::format("bytes is {}; give 2 or 4", options.bytes);
  if (!problem.empty()) throw InvalidArgument("MappedTokens: " + problem);
  return options;
}

}  // namespace

MappedTokens::MappedTokens(const std::filesystem::path& path, const MappedTokensOptions& options)
    : file_(path), options_(checked(options)) {
  if (options_.stride == 0) options_.stride = options_.window;
  tokens_ = count_units(file_, options_.bytes, options_.header, "token");
  if (tokens_ < options_.window) {
    throw InvalidArgument(fmt::format("the dataset '{}' has {} tokens, but a sample needs {}; take a shorter window",
                                      path.string(), tokens_, options_.window));
  }
  size_ = (tokens_ - options_.window) / options_.stride + 1;
}

std::size_t MappedTokens::begin_of(std::int64_t id) const {
  return static_cast<std::size_t>(options_.header + id * options_.stride * options_.bytes);
}

void MappedTokens::read(std::int64_t id, std::span<std::int64_t> window) const {
  check_sample(file_, id, size_);
  if (static_cast<std::int64_t>(window.size()) != options_.window) {
    throw InvalidArgument(
        fmt::format("MappedTokens: read() got {} places for a window of {} tokens; give one place for each token",
                    window.size(), options_.window));
  }
  const std::byte* from = file_.bytes().data() + begin_of(id);
  options_.bytes == 2 ? widen<std::uint16_t>(from, window) : widen<std::uint32_t>(from, window);
}

TokenBatch MappedTokens::batch(std::span<const std::int64_t> ids) const {
  file_.require_unchanged();
  const auto window = static_cast<std::size_t>(options_.window);
  TokenBatch batch{.ids = {ids.begin(), ids.end()}, .window = options_.window, .tokens = {}};
  batch.tokens.resize(ids.size() * window);
  for (std::size_t row = 0; row < ids.size(); ++row) {
    read(ids[row], std::span(batch.tokens).subspan(row * window, window));
  }
  return batch;
}

void MappedTokens::prefetch(std::span<const std::int64_t> ids) const {
  for (const std::int64_t id : ids) {
    file_.prefetch(begin_of(id), static_cast<std::size_t>(options_.window * options_.bytes));
  }
}

MappedRecords::MappedRecords(const std::filesystem::path& path, const MappedRecordsOptions& options)
    : file_(path), options_(options) {
  if (options.record < 1) {
    throw InvalidArgument(fmt::format(
        "MappedRecords: record is {} bytes, and must be at least 1; give the bytes of one record", options.record));
  }
  size_ = count_units(file_, options.record, options.header, "record");
}

std::span<const std::byte> MappedRecords::record(std::int64_t id) const& {
  check_sample(file_, id, size_);
  return file_.bytes().subspan(static_cast<std::size_t>(options_.header + id * options_.record),
                               static_cast<std::size_t>(options_.record));
}

RecordBatch MappedRecords::batch(std::span<const std::int64_t> ids) const {
  file_.require_unchanged();
  RecordBatch batch{
      .ids = {ids.begin(), ids.end()}, .record = static_cast<std::size_t>(options_.record), .records = {}};
  batch.records.reserve(ids.size() * batch.record);
  for (const std::int64_t id : ids) {
    const std::span<const std::byte> bytes = record(id);
    batch.records.insert(batch.records.end(), bytes.begin(), bytes.end());
  }
  return batch;
}

void MappedRecords::prefetch(std::span<const std::int64_t> ids) const {
  for (const std::int64_t id : ids) {
    file_.prefetch(static_cast<std::size_t>(options_.header + id * options_.record),
                   static_cast<std::size_t>(options_.record));
  }
}

namespace {

UniqueFd open_to_read(const std::filesystem::path& path) {
  UniqueFd file(uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
  if (file) return file;
  throw InvalidArgument(fmt::format("the dataset '{}' can't be opened: {}; check the path and the file's permissions",
                                    path.string(), errno_text(errno)));
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
      throw InvalidArgument(
          fmt::format("the dataset '{}' is not a regular file; give the path of a file", path.string()));
    }
    if (status.st_size == 0) {
      throw InvalidArgument(fmt::format(
          "the dataset '{}' is empty, as if its writing had not finished; write the file again", path.string()));
    }
    bytes = static_cast<std::size_t>(status.st_size);
    data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED) {
      throw SystemError(
          fmt::format(
              "the dataset '{}': can't map its {} bytes into memory (raise the limit on address space, ulimit -v)",
              path.string(), bytes),
          errno);
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
  throw CorruptData(
      fmt::format("the dataset '{}' changed while it was being read: it had {} bytes, and has {}{}; write changes to a "
                  "new file, and rename it when no program reads the old one",
                  mapping_->path.string(), mapping_->status.st_size, now.st_size,
                  now.st_size == mapping_->status.st_size ? ", written since" : ""));
}

}  // namespace lockstep::data
