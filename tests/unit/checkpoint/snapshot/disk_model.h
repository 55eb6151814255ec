// SPDX-License-Identifier: Apache-2.0
// A disk as a loss of power leaves it: what POSIX lets a file system lose of what was not synced.
//
// Names and bytes are durable apart from each other. A file's bytes are once it is synced. A name (of a file that was
// made, renamed, linked or removed, or of a folder) is once the folder that it is in is synced; until then each change
// of a name may have reached the disk or not, whatever became of the others: file systems reorder. A rename is one
// change.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/storage.h"

namespace lockstep::checkpoint {

// What is left of bytes that were not synced.
enum class UnsyncedBytes { whole, half, none, zeros };

// The files of a tree by path, relative to the disk's root, with their bytes; folders end in '/'.
using DiskState = std::map<std::string, std::string>;

class DiskModel {
 public:
  // Of the real folder `root`, which is empty, or whose content is durable.
  explicit DiskModel(std::filesystem::path root) : root_(std::move(root)) {
    make(true);
    read(root_, 0);
  }

  // What set_storage_observer() hears.
  void apply(const StorageOperation& operation) {
    using Kind = StorageOperation::Kind;
    const auto outside = operation.path.lexically_relative(root_);
    if (outside.empty() || *outside.begin() == "..") return;  // the folder above the root
    const auto node = find(operation.path);
    switch (operation.kind) {
      case Kind::create:
      case Kind::make_folder: return change({entry(operation.path, make(operation.kind == Kind::make_folder))});
      case Kind::write:
        nodes_.at(node.value())
            .bytes.append(reinterpret_cast<const char*>(operation.bytes.data()), operation.bytes.size());
        return;
      case Kind::sync_file: nodes_.at(node.value()).durable_bytes = nodes_[*node].bytes; return;
      case Kind::link:
        if (!find(operation.to)) change({entry(operation.to, node.value())});  // else link(2) refuses
        return;
      case Kind::rename: return change({entry(operation.to, node.value()), entry(operation.path, std::nullopt)});
      case Kind::remove:
        if (node) change({entry(operation.path, std::nullopt)});
        return;
      case Kind::sync_folder:
        nodes_.at(node.value()).durable_names = nodes_[*node].names;
        // Within one folder alone: what a change does to another may still be lost.
        for (Change& one : changes_) std::erase_if(one, [&](const Entry& it) { return it.folder == *node; });
        std::erase_if(changes_, [](const Change& one) { return one.empty(); });
        return;
    }
  }

  // Every state that a crash may leave now, each given once. Of up to kMostFree changes of names every subset; of
  // more, every prefix, each alone, and all but each.
  void each_crash_state(const std::function<void(const DiskState&)>& visit) const {
    constexpr std::size_t kMostFree = 8;
    const std::size_t free = changes_.size();
    std::set<std::vector<bool>> subsets;
    for (std::size_t bits = 0; free <= kMostFree && bits < (std::size_t{1} << free); ++bits) {
      std::vector<bool> subset(free);
      for (std::size_t i = 0; i < free; ++i) subset[i] = (bits >> i & 1) != 0;
      subsets.insert(std::move(subset));
    }
    for (std::size_t i = 0; free > kMostFree && i <= free; ++i) {
      std::vector<bool> prefix(free), alone(free), all_but(free, true);
      std::fill(prefix.begin(), prefix.begin() + static_cast<std::ptrdiff_t>(i), true);
      if (i < free) alone[i] = true;
      if (i < free) all_but[i] = false;
      subsets.insert({prefix, alone, all_but});
    }
    std::set<DiskState> seen;
    for (const std::vector<bool>& subset : subsets) {
      for (const auto unsynced :
           {UnsyncedBytes::whole, UnsyncedBytes::half, UnsyncedBytes::none, UnsyncedBytes::zeros}) {
        const auto [it, is_new] = seen.insert(state(subset, unsynced));
        if (is_new) visit(*it);
      }
    }
  }
  // Nothing is lost: a process has been killed, and the machine runs on.
  DiskState live() const { return state(std::vector<bool>(changes_.size(), true), UnsyncedBytes::whole); }

 private:
  using Inode = std::size_t;
  using Names = std::map<std::string, Inode>;
  struct Node {
    bool is_folder = false;
    std::string bytes = {};          // as a process sees it
    std::string durable_bytes = {};  // as the disk has it
    Names names = {};
    Names durable_names = {};
  };
  struct Entry {
    Inode folder = 0;
    std::string name;
    std::optional<Inode> node;  // nothing: it is removed

    void apply_to(Names& names) const {
      if (node) {
        names[name] = *node;
      } else {
        names.erase(name);
      }
    }
  };
  using Change = std::vector<Entry>;  // on the disk as a whole or not at all

  void read(const std::filesystem::path& path, Inode folder) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const Inode node = make(entry.is_directory());
      const std::string name = entry.path().filename().string();
      nodes_[folder].names[name] = nodes_[folder].durable_names[name] = node;
      if (entry.is_directory()) {
        read(entry.path(), node);
      } else {
        std::ifstream file(entry.path(), std::ios::binary);
        nodes_[node].bytes.assign(std::istreambuf_iterator<char>(file), {});
        nodes_[node].durable_bytes = nodes_[node].bytes;
      }
    }
  }
  Inode make(bool is_folder) {
    nodes_.push_back({.is_folder = is_folder});
    return nodes_.size() - 1;
  }
  std::optional<Inode> find(const std::filesystem::path& path) const {
    Inode node = 0;
    for (const std::filesystem::path& part : path.lexically_relative(root_)) {
      if (part == ".") continue;
      const auto found = nodes_[node].names.find(part.string());
      if (found == nodes_[node].names.end()) return std::nullopt;
      node = found->second;
    }
    return node;
  }
  Entry entry(const std::filesystem::path& path, std::optional<Inode> node) const {
    return {find(path.parent_path()).value(), path.filename().string(), node};
  }
  void change(Change change) {
    for (const Entry& entry : change) entry.apply_to(nodes_[entry.folder].names);
    changes_.push_back(std::move(change));
  }
  DiskState state(const std::vector<bool>& is_on_disk, UnsyncedBytes unsynced) const {
    std::vector<Node> nodes = nodes_;
    for (std::size_t i = 0; i < changes_.size(); ++i) {
      if (!is_on_disk[i]) continue;
      for (const Entry& entry : changes_[i]) entry.apply_to(nodes[entry.folder].durable_names);
    }
    for (Node& node : nodes) {
      if (node.bytes == node.durable_bytes) continue;
      const std::size_t synced = node.durable_bytes.size(), more = node.bytes.size() - synced;
      switch (unsynced) {
        case UnsyncedBytes::whole: node.durable_bytes = node.bytes; break;
        case UnsyncedBytes::half: node.durable_bytes = node.bytes.substr(0, synced + more / 2); break;
        case UnsyncedBytes::none: break;
        case UnsyncedBytes::zeros: node.durable_bytes.append(more, '\0'); break;
      }
    }
    DiskState state;
    collect(nodes, 0, "", state);
    return state;
  }
  static void collect(const std::vector<Node>& nodes, Inode folder, const std::string& prefix, DiskState& state) {
    for (const auto& [name, node] : nodes[folder].durable_names) {
      if (nodes[node].is_folder) {
        state[prefix + name + "/"];
        collect(nodes, node, prefix + name + "/", state);
      } else {
        state[prefix + name] = nodes[node].durable_bytes;
      }
    }
  }

  std::filesystem::path root_;
  std::vector<Node> nodes_;      // the root first
  std::vector<Change> changes_;  // not durable yet, in order
};

// Makes a real tree of it below `root`, which is emptied.
inline void materialise(const DiskState& state, const std::filesystem::path& root) {
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root);
  for (const auto& [name, bytes] : state) {
    if (name.back() == '/') {
      std::filesystem::create_directory(root / name);
    } else {
      std::ofstream(root / name, std::ios::binary) << bytes;
    }
  }
}

}  // namespace lockstep::checkpoint
