// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/storage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/unique_fd.h"
#include "runtime/checkpoint/file_error.h"

namespace lockstep::checkpoint {
namespace {

StorageObserver& observer() {
  static StorageObserver the_observer;
  return the_observer;
}

}  // namespace

std::filesystem::path parent_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

void set_storage_observer(StorageObserver new_observer) { observer() = std::move(new_observer); }

void observe(const StorageOperation& operation) {
  if (observer()) observer()(operation);
}

void make_folder(const std::filesystem::path& folder) {
  observe({.kind = StorageOperation::Kind::make_folder, .path = folder});
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    throw file_error("making the folder", folder, "mkdir", errno);
  }
  sync_folder(parent_of(folder));
}

void make_folders(const std::filesystem::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) == 0) {
    if (!S_ISDIR(status.st_mode)) {
      throw InvalidArgument(
          fmt::format("making folders: '{}' is a file, and must be a folder; give another path", folder.string()));
    }
    // The process that made it may not have lived to sync its name. A folder above that can't be read is older than
    // this.
    const std::filesystem::path parent = parent_of(folder);
    if (::access(parent.c_str(), R_OK) == 0) sync_folder(parent);
    return;
  }
  if (errno == ENOTDIR) {
    throw InvalidArgument(
        fmt::format("making the folder '{}': a part of this path is a file, and must be a folder; give another path",
                    folder.string()));
  }
  if (errno != ENOENT) throw file_error("looking for the folder", folder, "stat", errno);
  make_folders(parent_of(folder));
  make_folder(folder);
}

void sync_folder(const std::filesystem::path& folder) {
  observe({.kind = StorageOperation::Kind::sync_folder, .path = folder});
  const UniqueFd fd(uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (fd && uninterrupted([&] { return ::fsync(fd.get()); }) == 0) return;
  // EINVAL where the file system has no such call for folders.
  if (!fd || errno != EINVAL) throw file_error("writing to", folder, "fsync of the folder", errno);
}

bool remove_name(const std::filesystem::path& path) {
  observe({.kind = StorageOperation::Kind::remove, .path = path});
  if (std::remove(path.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  throw file_error("removing", path, "", errno);
}

}  // namespace lockstep::checkpoint
