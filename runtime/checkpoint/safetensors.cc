// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/regular_file.h"
#include "runtime/checkpoint/atomic_file.h"
#include "runtime/checkpoint/file_error.h"
#include "runtime/checkpoint/header.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian; a swap is owed here");

using LengthBytes = std::array<std::byte, 8>;

// Reads all of `destination` at `offset`; false if the file ends before.
bool read_at(int fd, std::span<std::byte> destination, std::uint64_t offset, const std::filesystem::path& path) {
  while (!destination.empty()) {
    const ssize_t got = ::pread(fd, destination.data(), destination.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw file_error("reading", path, "pread", errno);
    if (got == 0) return false;
    destination = destination.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                       const Metadata& metadata) {
  write_tensors(path, tensors, metadata, AtomicFile::Name::of_user);
}

WrittenFile write_tensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                          const Metadata& metadata, AtomicFile::Name name) {
  // Widest elements first, as the reference does: with the padded header every tensor is aligned.
  std::vector<const TensorSource*> sorted;
  for (const TensorSource& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const TensorSource* a, const TensorSource* b) {
    const std::size_t width_a = size_of(a->dtype);
    const std::size_t width_b = size_of(b->dtype);
    return width_a != width_b ? width_a > width_b : a->name < b->name;
  });
  Header header{.tensors = {}, .foreign = {}, .metadata = metadata};
  std::uint64_t offset = 0;
  for (const TensorSource* tensor : sorted) {
    const auto refuse = [&](const std::string& reason) {
      throw InvalidArgument(fmt::format("writing '{}': tensor {} {}", path.string(), in_quotes(tensor->name), reason));
    };
    if (tensor->name == "__metadata__") {
      throw InvalidArgument(fmt::format(
          "writing '{}': a tensor is named {}, a name that the safetensors format keeps for itself; give the "
          "tensor another name",
          path.string(), in_quotes(tensor->name)));
    }
    if (tensor_bytes(tensor->dtype, tensor->shape) != tensor->bytes.size()) {
      refuse(fmt::format("of {} was given {} bytes", describe(tensor->dtype, tensor->shape), tensor->bytes.size()));
    }
    TensorEntry entry{tensor->name, tensor->dtype, tensor->shape, offset, tensor->bytes.size()};
    if (!header.tensors.emplace(tensor->name, std::move(entry)).second) refuse("is there twice; rename one");
    offset += tensor->bytes.size();
  }
  const std::string text = encode_header(header);
  if (text.size() > kMaxHeaderBytes) {
    throw InvalidArgument(
        fmt::format("writing '{}': the header would take {} bytes, but the format allows at most {}; write fewer "
                    "tensors to this file",
                    path.string(), text.size(), kMaxHeaderBytes));
  }
  AtomicFile file(path, name);
  file.write(std::bit_cast<LengthBytes>(std::uint64_t{text.size()}));
  file.write(std::as_bytes(std::span(text)));
  for (const TensorSource* tensor : sorted) file.write(tensor->bytes);
  file.commit();
  return {file.bytes(), file.hash()};
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  const std::string name = path_.string();
  fd_ = std::make_shared<const UniqueFd>(open_regular(name, O_RDONLY));
  if (!*fd_ && (errno == ENOENT || errno == ENOTDIR)) {
    throw InvalidArgument(
        fmt::format("reading '{}': there is no such file; give the path of a file that exists", name));
  }
  if (!*fd_) throw file_error("reading", path_, "open", errno);
  struct stat status {};
  if (::fstat(fd_->get(), &status) != 0) throw file_error("reading", path_, "fstat", errno);

  const auto size = static_cast<std::uint64_t>(status.st_size);
  LengthBytes prefix{};
  try {
    if (size < prefix.size()) {
      throw CorruptData(
          fmt::format("the file has {} bytes, but the header's length alone takes {} bytes, so the file is cut", size,
                      prefix.size()));
    }
    bool whole = read_at(fd_->get(), prefix, 0, path_);
    const auto length = std::bit_cast<std::uint64_t>(prefix);
    const std::uint64_t left = size - prefix.size();
    if (length > std::min(left, kMaxHeaderBytes)) {
      throw CorruptData(
          fmt::format("the first 8 bytes of the file say that its header has {} bytes, but {} follow, and the format "
                      "allows at most {}, so the file is cut or damaged",
                      length, left, kMaxHeaderBytes));
    }
    std::string text(length, '\0');
    whole = whole && read_at(fd_->get(), std::as_writable_bytes(std::span(text)), prefix.size(), path_);
    if (!whole) throw CorruptData("the file was cut while this process was reading it");
    Header header = decode_header(text, left - length);
    for (auto& [unused, entry] : header.tensors) entry.offset += prefix.size() + length;
    for (auto& [unused, tensor] : header.foreign) tensor.entry.offset += prefix.size() + length;
    tensors_ = std::move(header.tensors);
    foreign_ = std::move(header.foreign);
    metadata_ = std::move(header.metadata);
  } catch (const CorruptData& error) {
    std::string begin(std::min<std::uint64_t>(size, 64), '\0');
    read_at(fd_->get(), std::as_writable_bytes(std::span(begin)), 0, path_);
    const std::string_view other = other_format(begin);
    if (!other.empty())
      throw CorruptData(
          fmt::format("reading '{}': this is not a well-formed safetensors file, but another format: {}", name, other));
    throw CorruptData(fmt::format("reading '{}': this is not a well-formed safetensors file: {}; take another copy",
                                  name, error.what()));
  }
}

const TensorEntry& SafetensorsFile::find(const std::string& name) const {
  const auto after = tensors_.lower_bound(name);
  if (after != tensors_.end() && after->first == name) return after->second;
  if (const auto found = foreign_.find(name); found != foreign_.end()) {
    throw InvalidArgument(
        fmt::format("reading '{}': tensor {} is {}, and lockstep has no such dtype; convert the tensor to F32, F64, "
                    "BF16, F16, I32, I64 or U8 first",
                    path_.string(), in_quotes(name), describe(found->second)));
  }
  std::string near;
  if (after != tensors_.begin()) near = in_quotes(std::prev(after)->first);
  if (after != tensors_.end()) near += (near.empty() ? "" : ", ") + in_quotes(after->first);
  throw InvalidArgument(
      fmt::format("reading '{}': there is no tensor {} among the file's {}; give the name of a tensor of the file; the "
                  "nearest names: {}",
                  path_.string(), in_quotes(name), tensors_.size() + foreign_.size(), near.empty() ? "none" : near));
}

void SafetensorsFile::read(const TensorEntry& entry, std::span<std::byte> destination) const {
  if (destination.size() != entry.bytes) {
    throw InvalidArgument(fmt::format(
        "reading '{}': tensor {} has {} bytes, and the destination has {}; give a destination of as many bytes",
        path_.string(), in_quotes(entry.name), entry.bytes, destination.size()));
  }
  if (!read_at(fd_->get(), destination, entry.offset, path_)) {
    throw CorruptData(
        fmt::format("reading '{}': the file ends inside tensor {}, so the file was cut after this process opened it; "
                    "take another copy",
                    path_.string(), in_quotes(entry.name)));
  }
}

}  // namespace lockstep::checkpoint
