// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/tensor_files.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/regular_file.h"
#include "runtime/checkpoint/file_error.h"
#include "runtime/checkpoint/header.h"
#include "runtime/checkpoint/strict_json.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexEnd = ".safetensors.index.json";
constexpr std::string_view kFileEnd = ".safetensors";
// Limit for an index: a million names of a hundred characters.
constexpr std::size_t kMaxIndexBytes = 100'000'000;

// The one file of `folder` that can be meant.
fs::path choose(const fs::path& folder) {
  std::vector<fs::path> indexes, files;
  std::error_code error;
  for (fs::directory_iterator item(folder, error); !error && item != fs::directory_iterator(); item.increment(error)) {
    const std::string name = item->path().filename().string();
    if (name.ends_with(kIndexEnd)) indexes.push_back(item->path());
    if (name.ends_with(kFileEnd)) files.push_back(item->path());
  }
  if (error) throw file_error("reading the folder", folder, "", error.value());
  const auto& candidates = indexes.empty() ? files : indexes;
  if (candidates.size() == 1) return candidates.front();
  throw InvalidArgument(
      fmt::format("'{}' is a folder with {} indexes (*{}) and {} files (*{}), so lockstep can't tell which of them to "
                  "load; name the file to read",
                  folder.string(), indexes.size(), kIndexEnd, files.size(), kFileEnd));
}

nlohmann::json parse_index(const fs::path& path) {
  const auto refuse = [&](std::string_view why) {
    return CorruptData(fmt::format("'{}' is not an index of safetensors files: {}", path.string(), why));
  };
  const UniqueFd fd = open_regular(path.string(), O_RDONLY);
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) {
    throw InvalidArgument(fmt::format("there is no file '{}'", path.string()));
  }
  if (!fd) throw file_error("reading", path, "open", errno);
  std::string text;
  if (!read_all(fd.get(), text, kMaxIndexBytes + 1)) throw file_error("reading", path, "read", errno);
  if (text.size() > kMaxIndexBytes) throw refuse(fmt::format("it has more than {} bytes", kMaxIndexBytes));
  if (const std::string_view other = other_format(text); !other.empty()) throw refuse(other);
  auto json = parse_json(text, fmt::format("'{}'", path.string()));
  if (json.is_object() && json.contains("weight_map") && json["weight_map"].is_object()) return json;
  throw refuse("the file is not a JSON object with a 'weight_map'; take another copy");
}

// An index from elsewhere must not name files outside its folder.
bool is_name_beside(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

}  // namespace

TensorFiles::TensorFiles(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  if (fs::is_directory(path_, error)) path_ = choose(path_);
  if (path_.extension() == ".json") {
    open_index();
  } else {
    open_one();
  }
}

void TensorFiles::open_one() {
  const SafetensorsFile& file = files_.emplace_back(path_);
  tensors_ = file.tensors();
  foreign_ = file.foreign();
  metadata_ = file.metadata();
  for (const auto& [name, entry] : tensors_) file_of_[name] = 0;
  for (const auto& [name, tensor] : foreign_) file_of_[name] = 0;
}

void TensorFiles::open_index() {
  const nlohmann::json index = parse_index(path_);
  std::map<std::string, std::size_t> opened;
  for (const auto& [tensor, value] : index["weight_map"].items()) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    if (!is_name_beside(name)) {
      throw CorruptData(
          fmt::format("the index '{}' puts tensor {} into '{}', which is not the name of a file in the same folder; "
                      "take another copy",
                      path_.string(), in_quotes(tensor), name));
    }
    const auto [at, is_new] = opened.try_emplace(name, files_.size());
    if (is_new) files_.emplace_back(path_.parent_path() / name);
    const SafetensorsFile& file = files_[at->second];
    if (const auto own = file.tensors().find(tensor); own != file.tensors().end()) {
      tensors_[tensor] = own->second;
    } else if (const auto other = file.foreign().find(tensor); other != file.foreign().end()) {
      foreign_[tensor] = other->second;
    } else {
      throw CorruptData(
          fmt::format("the index '{}' puts tensor {} into '{}', but this file does not hold the tensor; take another "
                      "copy of both files",
                      path_.string(), in_quotes(tensor), file.path().string()));
    }
    file_of_[tensor] = at->second;
  }
  if (!files_.empty()) metadata_ = files_.front().metadata();
  for (const SafetensorsFile& file : files_) {
    std::erase_if(metadata_, [&](const auto& item) {
      const auto theirs = file.metadata().find(item.first);
      return theirs == file.metadata().end() || theirs->second != item.second;
    });
  }
  const auto of_index = index.find("metadata");
  if (of_index == index.end() || !of_index->is_object()) return;
  for (const auto& [key, value] : of_index->items()) {
    if (value.is_string()) metadata_[key] = value.get<std::string>();
  }
}

void TensorFiles::read(const std::string& name, std::span<std::byte> destination) const {
  const auto foreign = foreign_.find(name);
  const TensorEntry& entry = foreign != foreign_.end() ? foreign->second.entry : tensors_.at(name);
  files_[file_of_.at(name)].read(entry, destination);
}

}  // namespace lockstep::checkpoint
