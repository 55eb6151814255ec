// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/checkpoint/snapshot/disk_model.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <utility>

namespace lockstep::checkpoint {

namespace fs = std::filesystem;
using Kind = StorageOperation::Kind;

DiskModel::DiskModel(fs::path root) : root_(std::move(root)) {
  make(true);
  read(root_, 0);
}

void DiskModel::read(const fs::path& path, Inode folder) {
  for (const auto& entry : fs::directory_iterator(path)) {
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

DiskModel::Inode DiskModel::make(bool is_folder) {
  nodes_.push_back({.is_folder = is_folder});
  return nodes_.size() - 1;
}

std::pair<DiskModel::Inode, std::string> DiskModel::place_of(const fs::path& path) const {
  const auto folder = find(path.parent_path());
  if (!folder) throw std::logic_error("no such folder: " + path.string());
  return {*folder, path.filename().string()};
}

std::optional<DiskModel::Inode> DiskModel::find(const fs::path& path) const {
  Inode node = 0;
  for (const fs::path& part : path.lexically_relative(root_)) {
    if (part == ".") continue;
    const auto found = nodes_[node].names.find(part.string());
    if (found == nodes_[node].names.end()) return std::nullopt;
    node = found->second;
  }
  return node;
}

void DiskModel::change(std::vector<Change::Entry> entries) {
  for (const Change::Entry& entry : entries) {
    Names& names = nodes_[entry.folder].names;
    if (entry.node) {
      names[entry.name] = *entry.node;
    } else {
      names.erase(entry.name);
    }
  }
  changes_.push_back({std::move(entries)});
}

void DiskModel::apply(const StorageOperation& operation) {
  const auto outside = operation.path.lexically_relative(root_);
  if (outside.empty() || *outside.begin() == "..") return;  // the folder above the root
  const auto node = find(operation.path);
  switch (operation.kind) {
    case Kind::create: {
      const auto [folder, name] = place_of(operation.path);
      return change({{folder, name, make(false)}});
    }
    case Kind::make_folder: {
      const auto [folder, name] = place_of(operation.path);
      return change({{folder, name, make(true)}});
    }
    case Kind::write:
      nodes_.at(node.value())
          .bytes.append(reinterpret_cast<const char*>(operation.bytes.data()), operation.bytes.size());
      return;
    case Kind::sync_file: nodes_.at(node.value()).durable_bytes = nodes_[*node].bytes; return;
    case Kind::link:
    case Kind::rename: {
      const auto [to_folder, to] = place_of(operation.to);
      if (operation.kind == Kind::link && nodes_[to_folder].names.contains(to)) return;  // link(2) refuses
      std::vector<Change::Entry> entries{{to_folder, to, node.value()}};
      if (operation.kind == Kind::rename) {
        const auto [folder, name] = place_of(operation.path);
        entries.push_back({folder, name, std::nullopt});
      }
      return change(std::move(entries));
    }
    case Kind::remove: {
      if (!node) return;
      const auto [folder, name] = place_of(operation.path);
      return change({{folder, name, std::nullopt}});
    }
    case Kind::sync_folder: {
      nodes_.at(node.value()).durable_names = nodes_[*node].names;
      // Within one folder alone: what a change does to another may still be lost.
      for (Change& one : changes_) std::erase_if(one.entries, [&](const auto& it) { return it.folder == *node; });
      std::erase_if(changes_, [](const Change& one) { return one.entries.empty(); });
      return;
    }
  }
}

void DiskModel::collect(const std::vector<Node>& nodes, Inode folder, const std::string& prefix,
                        DiskState& state) const {
  for (const auto& [name, node] : nodes[folder].durable_names) {
    if (nodes[node].is_folder) {
      state[prefix + name + "/"];
      collect(nodes, node, prefix + name + "/", state);
    } else {
      state[prefix + name] = nodes[node].durable_bytes;
    }
  }
}

DiskState DiskModel::state(const std::vector<bool>& is_on_disk, UnsyncedBytes unsynced) const {
  std::vector<Node> nodes = nodes_;
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    if (!is_on_disk[i]) continue;
    for (const Change::Entry& entry : changes_[i].entries) {
      if (entry.node) {
        nodes[entry.folder].durable_names[entry.name] = *entry.node;
      } else {
        nodes[entry.folder].durable_names.erase(entry.name);
      }
    }
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

void DiskModel::each_crash_state(const std::function<void(const DiskState&)>& visit) const {
  const std::size_t free = changes_.size();
  std::set<std::vector<bool>> subsets;
  if (free <= kMostFree) {
    for (std::size_t bits = 0; bits < (std::size_t{1} << free); ++bits) {
      std::vector<bool> subset(free);
      for (std::size_t i = 0; i < free; ++i) subset[i] = (bits >> i & 1) != 0;
      subsets.insert(std::move(subset));
    }
  } else {
    for (std::size_t i = 0; i <= free; ++i) {
      std::vector<bool> prefix(free), alone(free), all_but(free, true);
      std::fill(prefix.begin(), prefix.begin() + static_cast<std::ptrdiff_t>(i), true);
      if (i < free) alone[i] = true;
      if (i < free) all_but[i] = false;
      subsets.insert({prefix, alone, all_but});
    }
  }
  std::set<DiskState> seen;
  for (const std::vector<bool>& subset : subsets) {
    for (const UnsyncedBytes unsynced : kUnsyncedBytes) {
      const auto [it, is_new] = seen.insert(state(subset, unsynced));
      if (is_new) visit(*it);
    }
  }
}

DiskState DiskModel::live() const { return state(std::vector<bool>(changes_.size(), true), UnsyncedBytes::whole); }

void materialise(const DiskState& state, const fs::path& root) {
  fs::remove_all(root);
  fs::create_directories(root);
  for (const auto& [name, bytes] : state) {
    if (name.back() == '/') {
      fs::create_directory(root / name);
    } else {
      std::ofstream(root / name, std::ios::binary) << bytes;
    }
  }
}

}  // namespace lockstep::checkpoint
