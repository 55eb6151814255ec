// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/regular_file.h"
#include "runtime/checkpoint/atomic_file.h"
#include "runtime/checkpoint/file_error.h"

namespace lockstep::checkpoint {

namespace fs = std::filesystem;

void fail_to_read(const fs::path& path, const char* call, int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case EIO:
    case EUCLEAN:  // a file system whose own structures are damaged
    case EBADMSG:  // and whose checksums
      throw CorruptData(fmt::format("reading '{}': {}: {}", path.string(), call, errno_text(error_number)));
    default: throw file_error("reading", path, call, error_number);
  }
}

UniqueFd open_to_read(const fs::path& path) {
  try {
    UniqueFd fd = open_regular(path.string(), O_RDONLY);
    if (!fd) fail_to_read(path, "open", errno);
    return fd;
  } catch (const InvalidArgument& error) {
    throw CorruptData(error.what());
  }
}

std::string read_text(const fs::path& path, std::size_t most) {
  const UniqueFd fd = open_to_read(path);
  std::string text;
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_to_read(path, "fstat", errno);
  // A sparse file of any size costs its owner nothing, and each listing would read it.
  if (std::cmp_greater(status.st_size, most)) {
    throw CorruptData(
        fmt::format("'{}' has {} bytes, and at most {} are read of such a file; the file is damaged: take another copy",
                    path.string(), status.st_size, most));
  }
  if (!read_all(fd.get(), text, most)) fail_to_read(path, "read", errno);
  return text;
}

void write_text(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw file_error("listing", folder, "", error.value());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::int64_t> take_number(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t number = 0;
  const char* const begin = name.data() + prefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  return number;
}

}  // namespace lockstep::checkpoint
