// SPDX-License-Identifier: Apache-2.0
// A disk as a loss of power leaves it: what POSIX lets a file system lose of what was not synced.
//
// Names and bytes are durable apart from each other. A file's bytes are once it is synced. A name (of a file that was
// made, renamed, linked or removed, or of a folder) is once the folder that it is in is synced; until then each change
// of a name may have reached the disk or not, whatever became of the others: file systems reorder. A rename is one
// change.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/storage.h"

namespace lockstep::checkpoint {

// What is left of bytes that were not synced.
enum class UnsyncedBytes { whole, half, none, zeros };
inline constexpr UnsyncedBytes kUnsyncedBytes[] = {UnsyncedBytes::whole, UnsyncedBytes::half, UnsyncedBytes::none,
                                                   UnsyncedBytes::zeros};

// The files of a tree by path, relative to the disk's root, with their bytes; folders end in '/'.
using DiskState = std::map<std::string, std::string>;

class DiskModel {
 public:
  // Of the real folder `root`, which is empty, or whose content is durable.
  explicit DiskModel(std::filesystem::path root);

  // What set_storage_observer() hears.
  void apply(const StorageOperation& operation);
  // Every state that a crash may leave now, each given once. Of up to kMostFree changes of names every subset; of
  // more, every prefix, each alone, and all but each.
  void each_crash_state(const std::function<void(const DiskState&)>& visit) const;
  static constexpr std::size_t kMostFree = 8;
  // Nothing is lost: a process has been killed, and the machine runs on.
  DiskState live() const;

 private:
  struct Node;
  using Inode = std::size_t;
  using Names = std::map<std::string, Inode>;
  struct Node {
    bool is_folder = false;
    std::string bytes = {};          // as a process sees it
    std::string durable_bytes = {};  // as the disk has it
    Names names = {};
    Names durable_names = {};
  };
  // One change that is on the disk as a whole or not at all.
  struct Change {
    struct Entry {
      Inode folder = 0;
      std::string name;
      std::optional<Inode> node;  // nothing: it is removed
    };
    std::vector<Entry> entries;
  };

  void read(const std::filesystem::path& path, Inode folder);
  Inode make(bool is_folder);
  std::pair<Inode, std::string> place_of(const std::filesystem::path& path) const;
  std::optional<Inode> find(const std::filesystem::path& path) const;
  void change(std::vector<Change::Entry> entries);
  DiskState state(const std::vector<bool>& is_on_disk, UnsyncedBytes unsynced) const;
  void collect(const std::vector<Node>& nodes, Inode folder, const std::string& prefix, DiskState& state) const;

  std::filesystem::path root_;
  std::vector<Node> nodes_;      // the root first
  std::vector<Change> changes_;  // not durable yet, in order
};

// Makes a real tree of it below `root`, which is emptied.
void materialise(const DiskState& state, const std::filesystem::path& root);

}  // namespace lockstep::checkpoint
