// SPDX-License-Identifier: Apache-2.0
// The operations of a write on a disk, one by one: a seam, so that a test sees them all in their order, and can stop
// before any of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

namespace lockstep::checkpoint {

struct StorageOperation {
  enum class Kind : std::uint8_t {
    create,       // a file `path`, empty
    write,        // `bytes` at its end
    sync_file,    // its bytes are durable
    rename,       // `path` to `to`
    link,         // `to` is the file `path` too
    make_folder,  // `path`
    sync_folder,  // the names in it are durable
    remove,       // a file or an empty folder
  };
  Kind kind = Kind::create;
  std::filesystem::path path;
  std::filesystem::path to = {};
  std::span<const std::byte> bytes = {};
};

// Called before each operation of this process, by the thread that is about to do it; its exceptions come out of that
// operation. Null: no observer. For tests; do not set it while a thread writes.
using StorageObserver = std::function<void(const StorageOperation& operation)>;
void set_storage_observer(StorageObserver observer);
// Code that does an operation calls this first.
void observe(const StorageOperation& operation);

// The folder that a file or folder by this path lies in.
std::filesystem::path parent_of(const std::filesystem::path& path);
// Makes one folder, unless it is there, in one that is there; its name is durable once this returns. SystemError.
void make_folder(const std::filesystem::path& folder);
// Makes the folder and those above it, durably. InvalidArgument if one of them is a file, SystemError.
void make_folders(const std::filesystem::path& folder);
// The names in it are durable once this returns. SystemError.
void sync_folder(const std::filesystem::path& folder);
// A file, or a folder that is empty; false if it was not there. Durable with the next sync_folder() of where it was.
// SystemError.
bool remove_name(const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
